"""Networks of other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.checkpoints.model_path import library_of
from seamseg.inference.options import OF_PARTS, InferenceOptions
from seamseg.utils.errors import InputError, require_packages

if TYPE_CHECKING:
    import torch

    from seamseg.contrib.foreign.torchvision_model import TorchvisionModel
    from seamseg.contrib.foreign.transformers_model import TransformersModel


def open_model(
    model: str | Path,
    device: str | torch.device,
    config: str | Path | None,
    meta: str | Path | None,
    options: InferenceOptions,
) -> TransformersModel | TorchvisionModel:
    """Open a model of transformers or torchvision; see :func:`seamseg.inference.predictor.open_for_inference`."""
    if config is not None:
        raise InputError(f"`config` has no effect: {model} is no network of seamseg")
    if name := options.changed(OF_PARTS):
        raise InputError(f"`{name}` is for networks of seamseg only, {model} is none")
    if library_of(model) == "torchvision":
        require_packages("torchvision", what=str(model))
        from seamseg.contrib.foreign.torchvision_model import TorchvisionModel

        return TorchvisionModel(model, device, meta, options)
    require_packages("transformers", what=str(model))
    from seamseg.contrib.foreign.transformers_model import TransformersModel

    return TransformersModel(model, device, meta, options)
