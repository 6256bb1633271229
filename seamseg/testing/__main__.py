"""`python -m seamseg.testing FILE`: check components."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from seamseg.config.components import KINDS
from seamseg.testing.check import check_component
from seamseg.utils.errors import SeamsegError, one_line
from seamseg.utils.output import echo


def main(argv: Sequence[str] | None = None) -> int:
    """Check the files that the command line names and print what was checked; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m seamseg.testing",
        description="Check components with a small network on a generated city: training, resume, two processes, "
        "prediction, files.",
        epilog="example: python -m seamseg.testing edges.py --kind head --set channels=8",
    )
    parser.add_argument("sources", nargs="+", metavar="FILE", help="Python file or module of components")
    parser.add_argument("--kind", choices=KINDS, metavar="KIND", help="check only components of this kind")
    parser.add_argument("--name", help="check only the component of this name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of it, or section.key")
    parser.add_argument("--data", help="data set, with splits train and val, to train on instead of the city")
    parser.add_argument("--not-deterministic", action="store_true", help="a resumed training may have other weights")
    args = parser.parse_args(argv)
    if wrong := [text for text in args.set if "=" not in text]:
        parser.error(f"--set {wrong[0]}: expected KEY=VALUE")
    keys = dict(text.split("=", 1) for text in args.set)
    try:
        for source in args.sources:
            deterministic = not args.not_deterministic
            lines = check_component(source, args.kind, args.name, keys, deterministic=deterministic, data=args.data)
            echo("\n".join(lines), flush=True)
    except (AssertionError, SeamsegError) as error:
        echo(f"seamseg.testing: {one_line(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, SeamsegError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
