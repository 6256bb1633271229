"""Write the template of a component: a complete, working file to start from.

    seamseg new head edge
    seamseg new metric cars --out parts/cars.py

The file is used with --components FILE; docs/how-to/extend.md explains what each kind of component may do.
"""

from __future__ import annotations

import argparse
import keyword
from importlib.util import find_spec
from pathlib import Path

from seamseg.config.components import KINDS, register
from seamseg.utils.errors import InputError
from seamseg.utils.files import make_folder, write_atomically
from seamseg.utils.output import echo

TEMPLATES = {path.stem: path for path in sorted(Path(__file__).with_name("templates").glob("[a-z]*.py"))}
"""The template of each kind, in which the component is named `example`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", choices=list(TEMPLATES), help=", ".join(TEMPLATES))
    parser.add_argument("name", metavar="NAME", help="lower-case letters, digits and underscores")
    parser.add_argument("--out", metavar="FILE", help="Python file to write (default: NAME.py)")


def run(args: argparse.Namespace) -> int:
    """Write the file, and print what to do with it."""
    kind, name = args.kind, args.name
    text = template(kind, name)
    path = Path(args.out or f"{name}.py")
    if path.suffix != ".py":
        raise InputError(f"`out={path}`: must end with .py")
    if path.exists():
        raise InputError(f"{path}: exists already; choose another file with --out")
    if not path.stem.isidentifier() or find_spec(path.stem) is not None:
        raise InputError(f"{path}: another module has this name, or it is not one; choose another file with --out")
    make_folder(path.parent)
    write_atomically(path, text.encode())
    echo(f"{path}: {kind} {name}; next:")
    echo(f"  {use(kind, name, path)}")
    echo(f"  python -m seamseg.testing {path}")
    return 0


def template(kind: str, name: str) -> str:
    """Return the template of a kind with another name in it; InputError for a text that cannot be one."""
    register(kind, name)
    if keyword.iskeyword(name):
        raise InputError(f"{kind} {name}: is a keyword of Python; choose another name")
    camel = "".join(word.capitalize() for word in name.replace("-", "_").split("_")) or "Example"
    return TEMPLATES[kind].read_text(encoding="utf-8").replace("example", name).replace("Example", camel)


def use(kind: str, name: str, path: Path) -> str:
    """Return a command that uses a component."""
    if KINDS[kind].chosen:
        return f"seamseg predict MODEL PHOTOS OUT --components {path} --format {name}"
    chosen = f" --set {KINDS[kind].key}={name}" if KINDS[kind].key else ""
    return f"seamseg train small_r18 DATA --log-dir runs/{name} --components {path}{chosen}"
