"""Write an example of a component under another name: a complete, working file to start from.

    seamseg new head edge
    seamseg new metric cars --out parts/cars.py

The file is used with --components FILE; docs/how-to/extend.md explains what each kind of component may do.
"""

from __future__ import annotations

import argparse
import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from seamseg.config.components import KINDS, register
from seamseg.utils.errors import InputError
from seamseg.utils.files import make_folder, write_atomically
from seamseg.utils.output import echo

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "examples", _PACKAGE.parent / "examples" / "components")
"""Folders of the examples of an installed package, and of a clone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", choices=list(KINDS), help=", ".join(KINDS))
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
    if KINDS[kind].chosen:
        echo(f"  seamseg predict MODEL PHOTOS OUT --components {path} --format {name}")
    else:
        chosen = f" --set {KINDS[kind].key}={name}" if KINDS[kind].key else ""
        echo(f"  seamseg train small_r18 DATA --log-dir runs/{name} --components {path}{chosen}")
    echo(f"  python -m seamseg.testing {path}")
    return 0


def example(kind: str) -> tuple[str, str]:
    """Return the name of the example of a kind, and its text."""
    found = re.compile(rf'^@{"output_format" if kind == "format" else kind}\("(\w+)"', re.MULTILINE)
    texts = (file.read_text(encoding="utf-8") for folder in _FOLDERS for file in sorted(folder.glob("*.py")))
    return next((name[1], text) for text in texts if (name := found.search(text)))


def template(kind: str, name: str) -> str:
    """Return the example of a kind with another name in it; InputError for a text that cannot be one."""
    register(kind, name)
    if keyword.iskeyword(name):
        raise InputError(f"{kind} {name}: is a keyword of Python; choose another name")
    old, text = example(kind)
    return text.replace(old, name).replace(_camel(old), _camel(name))


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.replace("-", "_").split("_")) or "Own"
