"""Options of the commands that run a trained model: predict, serve, evaluate."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from seamseg.utils.errors import require_packages
from seamseg.utils.options import flags_of

Options = TypeVar("Options")


def add_model_options(
    parser: argparse.ArgumentParser,
    options: type,
    groups: Mapping[str, argparse._ActionsContainer] | None = None,
    without: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> None:
    """Add the flags of a dataclass of options for running a model, and `--set` and `--components`.

    Parameters
    ----------
    parser, options, groups, unused : see :func:`add_options`
    without : positional arguments, and options without a flag
    """
    known = {"": parser, "opening": parser, **(groups or {})}
    # formats of `predict` need probabilities, or do not
    add_options(parser, options, known, ("overrides", "probabilities", *without), unused)
    add_set(known["opening"])
    add_components(known["opening"])


def add_options(
    parser: argparse.ArgumentParser,
    options: type,
    groups: Mapping[str, argparse._ActionsContainer],
    without: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> None:
    """Add the flags of a dataclass of options.

    Parameters
    ----------
    parser : parser of the command, which gets the groups
    options : the dataclass
    groups : groups that exist, by title
    without, unused : names of options without a flag, and with one that help does not show
    """
    made = dict(groups)
    flags = {field.name: flags_of(field) for field in fields(options)}
    for field in fields(options):
        if field.name in without:
            continue
        told = field.metadata
        if told["group"] not in made:
            made[told["group"]] = parser.add_argument_group(told["group"])
        text = re.sub(r"`(\w+)`", lambda found: flags[found[1]][0], told["text"])
        value: dict[str, Any] = {"action": "store_true"}
        if field.type != "bool":
            value = {"type": _TYPES.get(field.type.removesuffix(" | None")), "metavar": told["metavar"]}
            value["choices"] = told["choices"]
        text = argparse.SUPPRESS if field.name in unused else text
        made[told["group"]].add_argument(*flags[field.name], dest=field.name, default=field.default, help=text, **value)


def _number_or_text(text: str) -> str | int:
    return int(text) if text.isdecimal() and len(text) < 20 else text


_TYPES = {"int": int, "float": float, "str | int": _number_or_text}
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


def add_components(parser: argparse._ActionsContainer, dest: str = "overrides") -> None:
    """Add `--components`, which is an override in the list `dest`."""
    parser.add_argument(
        "--components",
        dest=dest,
        type=lambda name: f"general.components={name}",
        action="append",
        metavar="FILE",
        help="Python file or module with components, see docs/how-to/extend.md; repeatable",
    )


def add_foreign_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of reading a model to convert it, which may be a classifier."""
    parser.add_argument(
        "--config", metavar="FILE", help="configuration of a model without its own; JSON of a classifier"
    )
    parser.add_argument(
        "--meta",
        metavar="F",
        help="metadata.bin of a model without its own; for a network of transformers also a class list",
    )
    add_set(parser)
    add_components(parser)


def options_of(args: argparse.Namespace, options: Callable[..., Options]) -> Options:
    """Return a dataclass of options with those of the arguments."""
    declared = vars(options)["__dataclass_fields__"]
    return options(**{name: value for name, value in vars(args).items() if name in declared})


def check_model(model: str, device: str = "auto") -> None:
    """Raise InputError for a missing model or package, before the libraries are loaded, which takes seconds.

    Parameters
    ----------
    model, device : arguments as given; a model of the hub is not downloaded
    """
    from seamseg.checkpoints.foreign import is_foreign, is_torchvision
    from seamseg.checkpoints.hub import is_hub_uri
    from seamseg.checkpoints.model_path import PACKAGE_ENDING, is_exported, local_model, snapshot_in
    from seamseg.checkpoints.names import WEIGHTS_ENDING

    if is_hub_uri(model):
        require_packages("huggingface_hub", what=model)
    elif is_foreign(model):
        require_packages("torchvision" if is_torchvision(model) else "transformers", what=model)
    else:
        path = local_model(model)
        path = snapshot_in(path) if path.is_dir() else path
        if path.suffix == WEIGHTS_ENDING:
            require_packages("safetensors", what=model)
        elif is_exported(path) and path.suffix != PACKAGE_ENDING:
            require_packages("openvino" if device.startswith("openvino") else "onnxruntime", what=model)
