"""List the components that a configuration can choose, built in and of your own files, with their keys.

    seamseg components
    seamseg components --components my_heads.py
    seamseg components --kind optimizer

A component is a part that is chosen by its name: docs/how-to/extend.md shows how to write one.
"""

from __future__ import annotations

import argparse

from seamseg.cli.model_options import add_components
from seamseg.config import components
from seamseg.config.loader import load_components
from seamseg.config.reference import chosen_by
from seamseg.config.values import format_value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_components(parser)
    parser.add_argument("--kind", choices=list(components.KINDS), help="only components of this kind")
    parser.set_defaults(set=[])


def run(args: argparse.Namespace) -> int:
    """Print the components by kind."""
    load_components(args.set)
    for kind, what in components.KINDS.items():
        if args.kind not in (None, kind):
            continue
        print(f"{kind}: {what.what}; {chosen_by(kind, what).replace('`', '')}")
        for component in components.registered(kind):
            where = "built in" if component.built_in else str(component.file)
            doc = (component.make.__doc__ or "").strip().split("\n")[0]
            print(f"  {component.name} ({where}): {doc}")
            for name, spec in components.declared(component.keys).items():
                print(f"    {name} = {format_value(spec.default)}    {spec.metadata['doc']}")
    return 0
