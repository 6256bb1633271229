"""List the components that a configuration can choose, with their keys: the built-in ones, or those of your own files.

    seamseg components
    seamseg components --components my_heads.py
    seamseg components --kind optimizer --components my_optimizers.py

A component is a part that is chosen by its name: docs/how-to/extend.md shows how to write one.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from dataclasses import fields

from seamseg.cli.main import add_override
from seamseg.config import components
from seamseg.config.loader import load_components
from seamseg.config.reference import by_make, chosen_by, components_reference, summary
from seamseg.config.values import format_value
from seamseg.extensions import RECIPES
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_override(parser, "--components")
    parser.add_argument("--kind", choices=list(components.KINDS), help="only components of this kind")


def run(args: argparse.Namespace) -> int:
    """Print the components by kind."""
    if not args.overrides or args.kind is not None:
        import_all()
    load_components(args.overrides)
    recipes = tuple(f"{package}." for package in RECIPES)
    named = [c for c in components.registered() if not c.built_in or c.module.startswith(recipes)]
    if args.overrides and not named:
        echo("no file registers a component", file=sys.stderr)
    for kind, what in components.KINDS.items():
        found = components.registered(kind)
        if args.overrides and args.kind is None:
            found = [component for component in found if component in named]
        if args.kind not in (None, kind) or (args.overrides and not found):
            continue
        echo(f"{kind}: {what.what}; {chosen_by(kind, what).replace('`', '')}")
        for group in by_make(found):
            first = group[0]
            where = "built in" if first not in named else first.module if first.built_in else str(first.file)
            echo(f"  {', '.join(component.name for component in group)} ({where}): {summary(first)}")
            for spec in fields(first.keys):
                echo(f"    {spec.name} = {format_value(spec.default)}    {spec.metadata['doc']}")
    return 0


def import_all() -> None:
    """Import all components of the package: the defaults, and those that a configuration has to name."""
    import seamseg.data.reader
    import seamseg.models.build
    import seamseg.predicting.writers
    import seamseg.training.run  # noqa: F401

    for package in RECIPES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)


if __name__ == "__main__":
    import_all()
    sys.stdout.buffer.write(components_reference().encode("utf-8"))
