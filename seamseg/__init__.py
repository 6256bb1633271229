"""Panoptic segmentation of street scenes: Seamless Scene Segmentation with in-place activated BatchNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from torch import nn

    from seamseg.inference.predictor import Predictor

__all__ = ["__version__", "classifier", "load"]


def classifier(config: Any, checkpoint: Any = None, device: Any = "auto") -> nn.Module:
    """Load an ImageNet classifier: `seamseg.classifier("resnext101_ipabn_lr_512", "resnext101_ipabn_lr_512.pth.tar")`.

    Parameters
    ----------
    config : JSON file, or the name of a packaged one
    checkpoint : of this project or of the original; random weights if None
    device : auto (a GPU if there is one), cpu, cuda or cuda:N; for `.onnx` cpu (ONNX Runtime) or openvino

    Returns
    -------
    a network in evaluation mode that maps images `N x 3 x H x W`, normalised by `mean` and `std` of the configuration,
    to logits `N x classes`; the keys of its state dict are those of the original without the prefix `module.`

    Raises
    ------
    seamseg.utils.errors.InputError
        if the configuration is wrong, or the checkpoint is missing, broken, or does not fit it
    """
    # `import seamseg` must not import torch
    from seamseg.classification.checkpoint import load_classifier

    return load_classifier(config, checkpoint, device)


def load(model: Any, device: Any = "auto", config: Any = None, meta: Any = None, **options: Any) -> Predictor[Any]:
    """Load a trained model: `seamseg.load("model.zip").predict("street.jpg")`.

    The kind of the model decides what :meth:`~seamseg.inference.predictor.Predictor.predict` returns: a panoptic map,
    or detections with boxes and masks.

    Parameters
    ----------
    model : published zip, run folder, or snapshot
    device : auto (a GPU if there is one), cpu, cuda or cuda:N; for `.onnx` cpu (ONNX Runtime) or openvino
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
