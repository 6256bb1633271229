"""Open a model of another library; what these models have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.checkpoints.foreign import is_torchvision
from seamseg.config import Config, config_from_string
from seamseg.data.input_size import InputSize
from seamseg.inference.images import input_size
from seamseg.inference.options import InferenceOptions
from seamseg.utils.errors import InputError, require_packages

if TYPE_CHECKING:
    import torch

    from seamseg.inference.predictor import OpenedModel

_REFUSED = ("tta", "tta_fusion", "compile", "cuda_graphs", "pad_to")
"""Options that need the parts of our own networks."""


def open_foreign(
    model: str | Path,
    device: str | torch.device,
    config: str | Path | None,
    meta: str | Path | None,
    options: InferenceOptions,
) -> OpenedModel:
    """Open a model of transformers or torchvision; see :func:`seamseg.inference.predictor.open_for_inference`."""
    if config is not None:
        raise InputError(f"`config` has no effect: {model} is no network of seamseg")
    defaults = {field.name: field.default for field in fields(InferenceOptions)}
    for name in _REFUSED:
        if (getattr(options, name) or None) != (defaults[name] or None):
            raise InputError(f"`{name}` is for networks of seamseg only, {model} is none")
    if is_torchvision(model):
        require_packages("torchvision", what=str(model))
        from seamseg.inference.foreign.torchvision_model import TorchvisionModel

        return TorchvisionModel(model, device, meta, options)
    require_packages("transformers", what=str(model))
    from seamseg.inference.foreign.transformers_model import TransformersModel

    return TransformersModel(model, device, meta, options)


def neutral_config(
    kind: str, keys: Mapping[str, object], name: str, options: InferenceOptions, sections: tuple[str, ...]
) -> Config:
    """Return a configuration that carries the settings of a network of another library.

    Parameters
    ----------
    kind : of the network
    keys : `section.key` with their values
    name : of the model, for errors
    options : their overrides are applied
    sections : that overrides may change

    Raises
    ------
    InputError
        if an override is malformed or has no effect
    """
    for override in options.overrides:
        if override.partition(".")[0].strip() not in sections or "general.kind" in override:
            raise InputError(f"`overrides={override}`: has no effect on {name}, which is no network of seamseg")
    texts: dict[str, list[str]] = {}
    for key, value in keys.items():
        section, _, option = key.partition(".")
        texts.setdefault(section, [f"[{section}]"]).append(f"{option} = {value}")
    ini = "\n".join(line for lines in texts.values() for line in lines)
    return config_from_string(ini, kind, name, options.overrides)


def input_size_of_authors(config: Config, options: InferenceOptions) -> InputSize:
    """Return the size of the network's input: unless options change it, exactly that of the configuration."""
    loading, longest = config.dataloader, options.longest_max_size
    if longest is None and options.shortest_size is None and options.size is None and loading.longest_size is None:
        # the limit of our own networks is larger
        longest = loading.longest_max_size
    size = input_size(config, options.shortest_size, longest, options.size)
    return size.halved() if options.preview else size
