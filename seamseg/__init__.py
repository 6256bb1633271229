"""Panoptic segmentation of street scenes: Seamless Scene Segmentation with in-place activated BatchNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from seamseg.inference.predictor import Predictor

__all__ = ["__version__", "load"]


def load(model: Any, device: Any = "auto", config: Any = None, meta: Any = None, **options: Any) -> Predictor[Any]:
    """Load a trained model: `seamseg.load("model.zip").predict("street.jpg")`.

    The kind of the model decides what :meth:`~seamseg.inference.predictor.Predictor.predict` returns: a panoptic map,
    or detections with boxes and masks.

    Parameters
    ----------
    model : published zip, run folder, or snapshot
    device : auto (a GPU if there is one), cpu, cuda or cuda:N
    config, meta : INI file and `metadata.bin`, if the model does not contain them
    **options : thresholds, sizes, tiles and so on, see :class:`seamseg.inference.options.InferenceOptions`

    Returns
    -------
    seamseg.inference.predictor.Predictor

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model is missing, broken, or does not match its configuration and metadata
    """
    # `import seamseg` must not import torch
    from seamseg.inference.options import InferenceOptions
    from seamseg.inference.predictor import load_predictor

    return load_predictor(model, device, config, meta, InferenceOptions(**options))
