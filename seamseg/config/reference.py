"""The pages of all configuration keys and of all components.

python -m seamseg.config.reference > docs/config.md
python -m seamseg.cli.components > docs/reference/components.md
"""

from __future__ import annotations

import re
import sys
import textwrap
import typing
from dataclasses import Field, fields

from seamseg.config import components
from seamseg.config.kinds import KINDS, PANOPTIC
from seamseg.config.loader import default_config
from seamseg.config.sections import SECTIONS
from seamseg.config.values import format_value, hints_of, name_of

_HEAD = """# Configuration keys

<!-- made by `make reference` from seamseg/config/sections.py; change it there -->

A configuration is an INI file. Missing keys have the default of the table. Values other than plain text are Python
literals. Keys marked ° do not exist in the original; their defaults reproduce it. Unknown sections and keys are
errors. On the command line, set a key as in `seamseg train --set optimizer.lr=0.02`.

Sections and keys that name kinds are used by these kinds of networks only. For other kinds, a value that is not the
default is an error. It is ignored in two cases: the command line asks for another kind than the file (panoptic, if it
names none); or the key is one of the original, and the file does not name its kind.

Experiments of `configs/` can be given by their bare name: `seamseg train vistas_r50 DATA`.
"""


def reference() -> str:
    """Return the page in Markdown."""
    defaults = {kind: default_config(kind).texts for kind in KINDS}
    lines = [_HEAD]
    for name, section in SECTIONS.items():
        hints = hints_of(section)
        lines += [f"## [{name}]", "", (section.__doc__ or "").strip(), ""]
        if users := _users(name, *hints):
            lines += [f"Kinds: {users}.", ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        for spec in fields(section):
            shown = {kind: f"`{text}`" if (text := defaults[kind][name][spec.name]) else "empty" for kind in KINDS}
            # `[general] kind` is the only key whose default is the name of the kind
            others = [f"{k}: {text}" for k, text in shown.items() if text not in (shown[PANOPTIC], f"`{k}`")]
            own = _users(name, spec.name)
            cells = (
                f"`{spec.name}`" + (" °" if spec.metadata["ours"] else ""),
                _value(hints[spec.name], spec),
                "; ".join([shown[PANOPTIC], *others]),
                spec.metadata["doc"] + (f"; kinds: {own}" if own not in ("", users) else ""),
            )
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _users(section: str, *keys: str) -> str:
    """Return the kinds of networks that use a key of a section; empty for all of them, or none."""
    users = [name for name, kind in KINDS.items() if any(kind.uses(section, key) for key in keys)]
    return ", ".join(users) if len(users) < len(KINDS) else ""


def _value(hint: tuple[typing.Any, bool], spec: Field[typing.Any]) -> str:
    kind, optional = hint
    words = name_of(kind)
    if spec.metadata["choices"]:
        words = ", ".join(f"`{choice}`" for choice in spec.metadata["choices"])
        if spec.metadata["component"]:
            words += ", or a component"
    low, high, above = (spec.metadata[name] for name in ("minimum", "maximum", "above"))
    if low is not None and high is not None:
        words += f", {low} to {high}"
    else:
        words += "" if above is None else f" > {above}"
        words += "" if low is None else f" ≥ {low}"
        words += "" if high is None else f", ≤ {high}"
    return words + (", or empty" if optional else "")


_COMPONENTS = """# Components

<!-- made by `make reference` from the components of the package; change it there -->

Parts that a configuration can choose by name. [Extend](../how-to/extend.md) shows how to write one, `seamseg new KIND
NAME` writes an example, and `seamseg components --components FILE` lists those of a file. Kinds without a list have
no built-in components: write your own. To use one of a module `seamseg.contrib.recipes.NAME`, name the module with
`[general]
components = seamseg.contrib.recipes.NAME` or `--components seamseg.contrib.recipes.NAME`, as you name your own files.
"""


def components_reference() -> str:
    """Return the page of the components that are imported, in Markdown."""
    lines = [_COMPONENTS]
    for kind, spec in components.KINDS.items():
        lines += [f"## {kind}", "", f"{spec.what[0].upper()}{spec.what[1:]}; {chosen_by(kind, spec)}.", ""]
        own = [component for component in components.registered(kind) if component.built_in]
        for group in by_make(own):
            first, names = group[0], ", ".join(f"`{component.name}`" for component in group)
            lines.append(_wrapped(f"- {names} (`{first.module}`): {summary(first)}"))
            for key in fields(first.keys):
                default = f"`{text}`" if (text := format_value(key.default)) else "empty"
                value = _value(hints_of(first.keys)[key.name], key)
                lines.append(_wrapped(f"  - `{key.name}`: {key.metadata['doc']}; {value}; default {default}"))
        lines += [""] if own else []
    return "\n".join(lines)


def by_make(found: list[components.Component]) -> list[list[components.Component]]:
    """Return components in groups of those that one class or function makes, such as bodies of one family."""
    groups: dict[typing.Any, list[components.Component]] = {}
    for component in found:
        groups.setdefault((component.make, component.keys), []).append(component)
    return list(groups.values())


def summary(component: components.Component) -> str:
    """Return the first line of the docstring of a component, without the roles of Sphinx."""
    line = (component.make.__doc__ or "").strip().split("\n")[0]
    return re.sub(r":\w+:`(?:[^`]*\.)?([^`.]+)`", r"`\1`", line)


def chosen_by(kind: str, spec: components.ComponentKind) -> str:
    """Return how a component of a kind is chosen."""
    if spec.chosen:
        return "chosen by `format=NAME` of predict"
    if spec.key:
        return f"chosen by `[{spec.key.replace('.', '] ')} = NAME`"
    return f"added by a section `[{kind} NAME]`, or by its file"


def _wrapped(item: str) -> str:
    indent = " " * (item.index("- ") + 2)
    return textwrap.fill(item, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.buffer.write(reference().encode("utf-8"))
