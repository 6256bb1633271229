"""Arguments of commands, from the dataclass of options of the function that does the same."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.options import flags_of

Options = TypeVar("Options")


def add_options(
    parser: argparse.ArgumentParser,
    options: type,
    groups: Mapping[str, argparse._ActionsContainer] | None = None,
    without: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> None:
    """Add the arguments of a dataclass of options: those without a default by position, the others as flags.

    `--set` and `--components` are added for its overrides. `groups` are those that exist, by title; the parser gets the
    others. Options in `without` get no argument, those in `unused` one that help does not show.
    """
    made: dict[str, argparse._ActionsContainer] = {"": parser, "opening": parser, **(groups or {})}
    names = {field.name: flags_of(field)[0] for field in fields(options)}
    for field in fields(options):
        told = field.metadata
        if field.name in without:
            continue
        if told["group"] not in made:
            made[told["group"]] = parser.add_argument_group(told["group"])
        group = made[told["group"]]
        if field.name == "overrides":
            add_set(made["opening"])
            add_components(made["opening"])
            continue
        text = re.sub(r"`(\w+)`", lambda found: names.get(found[1], found[0]), told["text"])
        value: dict[str, Any] = {"help": argparse.SUPPRESS if field.name in unused else text}
        if field.type == "bool":
            value["action"] = "store_true"
        else:
            value |= {"type": _TYPES.get(field.type.removesuffix(" | None")), "metavar": told["metavar"]}
            value["choices"] = told["choices"]
            value |= {"words": {"nargs": "+"}, "flags": {"action": "append"}, "": {}}[told["several"]]
        if field.default is MISSING:
            value["metavar"] = told["metavar"] or field.name.upper()
            group.add_argument(field.name, **value)
        else:
            default = [] if told["several"] else field.default
            group.add_argument(*flags_of(field), dest=field.name, default=default, **value)


def _number_or_text(text: str) -> str | int:
    return int(text) if text.isdecimal() and len(text) < 20 else text


def size(text: str) -> tuple[int, int]:
    """Return the height and width of `HEIGHTxWIDTH`; InputError for another text."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, for example 1024x2048")
    return int(match[1]), int(match[2])


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str | int": _number_or_text,
    "tuple[int, int]": size,
}
"""Types of values by the annotation of a field; text for others."""


def add_set(parser: argparse._ActionsContainer) -> None:
    """Add `--set`, an override."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any configuration key; repeatable",
    )


def add_set_and_device(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--device`."""
    add_set(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def add_components(parser: argparse._ActionsContainer) -> None:
    """Add `--components`, an override."""
    parser.add_argument(
        "--components",
        dest="overrides",
        type=lambda name: f"general.components={name}",
        action="append",
        metavar="FILE",
        help="Python file or module with components, see docs/how-to/extend.md; repeatable",
    )


def options_of(args: argparse.Namespace, options: Callable[..., Options]) -> Options:
    """Return a dataclass of options with the values of the arguments."""
    declared = vars(options)["__dataclass_fields__"]
    return options(**{name: value for name, value in vars(args).items() if name in declared})


def check_model(model: str, device: str = "auto") -> None:
    """Raise InputError for a missing model or package, before the libraries are loaded, which takes seconds.

    A model of the hub is not downloaded.
    """
    from seamseg.checkpoints.foreign import is_torchvision, is_transformers
    from seamseg.checkpoints.hub import is_hub_uri
    from seamseg.checkpoints.model_path import PACKAGE_ENDING, is_exported, local_model, snapshot_in
    from seamseg.checkpoints.names import WEIGHTS_ENDING

    if is_hub_uri(model):
        require_packages("huggingface_hub", what=model)
    elif is_torchvision(model):
        require_packages("torchvision", what=model)
    elif is_transformers(Path(model)):
        require_packages("transformers", what=model)
    else:
        path = local_model(model)
        path = snapshot_in(path) if path.is_dir() else path
        if path.suffix == WEIGHTS_ENDING:
            require_packages("safetensors", what=model)
        elif is_exported(path) and path.suffix != PACKAGE_ENDING:
            require_packages("openvino" if device.startswith("openvino") else "onnxruntime", what=model)
