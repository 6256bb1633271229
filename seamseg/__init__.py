"""Panoptic segmentation of street scenes: Seamless Scene Segmentation with in-place activated BatchNorm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from .version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from seamseg import prepare
    from seamseg.deploy.export import ExportReport
    from seamseg.evaluation.scores import Scores
    from seamseg.inference.options import Augmentation, InferenceOptions
    from seamseg.inference.predictor import Predictor
    from seamseg.training.callbacks import Callback
    from seamseg.training.result import TrainResult

# `import seamseg` must not import torch: each function imports what it needs

__all__ = ["__version__", "classifier", "evaluate", "export", "load", "prepare", "serve", "train"]


def __getattr__(name: str) -> Any:
    """Import the converters of data sets, `seamseg.prepare`, when they are used."""
    if name == "prepare":
        from importlib import import_module

        return import_module("seamseg.prepare")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Overrides: TypeAlias = "Mapping[str, object] | str | Sequence[str]"
"""Configuration keys: `{"section.key": value}`, `"section.key=value"` or several of these texts."""


def classifier(config: Any, checkpoint: Any = None, device: Any = "auto") -> nn.Module:
    """Load an ImageNet classifier: `seamseg.classifier("resnext101_ipabn_lr_512", "resnext101_ipabn_lr_512.pth.tar")`.

    Parameters
    ----------
    config : JSON file, or the name of a packaged one; or a folder with configuration and checkpoint, also
        `hf://user/repo`
    checkpoint : checkpoint of this project or of the original; that of the folder, or random weights if None
    device : auto (a GPU if there is one), cpu, cuda or cuda:N

    Returns
    -------
    a network in evaluation mode that maps images `N x 3 x H x W`, normalised by `mean` and `std` of the configuration,
    to logits `N x classes`; the keys of its state dict are those of the original without the prefix `module.`

    Raises
    ------
    seamseg.utils.errors.InputError
        if the configuration is wrong, or the checkpoint is missing, broken, or does not fit it
    """
    from seamseg.classification.checkpoint import load_classifier

    return load_classifier(config, checkpoint, device)


def load(
    model: str | Path,
    device: Any = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    *,
    score_threshold: float | None = None,
    overlap_threshold: float | None = None,
    min_stuff_area: int | None = None,
    shortest_size: int | None = None,
    longest_max_size: int | None = None,
    size: int | None = None,
    preview: bool = False,
    tiles: str | int = "auto",
    tile_overlap: int | None = None,
    tta: str | Augmentation | None = None,
    tta_fusion: str = "mean",
    probabilities: bool = False,
    classes: str | Sequence[str] | None = None,
    precision: str = "fp32",
    compile: bool = False,
    cuda_graphs: bool = False,
    pad_to: int = 1,
    overrides: Overrides = (),
    components: str | Path | Sequence[str | Path] = (),
) -> Predictor[Any]:
    """Load a trained model: `seamseg.load("model.zip").predict("street.jpg")`.

    The kind of the model decides what :meth:`~seamseg.inference.predictor.Predictor.predict` returns: a panoptic map,
    or detections with boxes and masks.

    Parameters
    ----------
    model : published zip, run folder, folder of `seamseg convert-model`, snapshot, exported network (.onnx, .pt2),
        folder of a panoptic network of transformers, `torchvision:NAME[?weights=FILE]`, or
        `hf://user/repo[@revision][/FILE]` on the Hugging Face Hub
    device : auto (a GPU if there is one), cpu, cuda or cuda:N; for `.onnx` cpu (ONNX Runtime) or openvino
    config, meta : INI file and `metadata.bin`, if the model does not contain them; for a network of transformers also a
        class list or COCO categories
    components : files or modules of components that the model uses, see docs/how-to/extend.md
    others : see :class:`seamseg.inference.options.InferenceOptions`; those of `seamseg predict`

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model is missing, broken, or does not match its configuration and metadata
    """
    given = locals()
    from seamseg.inference.predictor import load_predictor

    return load_predictor(model, device, config, meta, _inference_options(given))


def evaluate(
    model: str | Path,
    data: str | Path,
    device: str = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    *,
    split: str | None = None,
    out: str | Path | None = None,
    legacy: bool = False,
    quiet: bool = False,
    class_table: str | Path | None = None,
    score_threshold: float | None = None,
    overlap_threshold: float | None = None,
    min_stuff_area: int | None = None,
    shortest_size: int | None = None,
    longest_max_size: int | None = None,
    size: int | None = None,
    preview: bool = False,
    tiles: str | int = "auto",
    tile_overlap: int | None = None,
    tta: str | Augmentation | None = None,
    tta_fusion: str = "mean",
    precision: str = "fp32",
    compile: bool = False,
    cuda_graphs: bool = False,
    pad_to: int = 1,
    overrides: Overrides = (),
    components: str | Path | Sequence[str | Path] = (),
) -> Scores:
    """Score the results that :func:`load` gives with the same options: `seamseg.evaluate("runs/city", "data").PQ`.

    The kind of the model decides the type of the scores, for example :class:`seamseg.evaluation.scores.PanopticScores`.

    Parameters
    ----------
    model, device, config, meta : see :func:`load`
    data : dataset folder
    split : name of the split; None for `[dataloader] val_set` of the configuration
    out : evaluation folder to write; None for none
    legacy : count as the original
    quiet : show no progress
    class_table : how the classes of the model are mapped to those of the data set, see
        :class:`seamseg.checkpoints.class_table.ClassTable`; None if they are the same
    components : see :func:`load`
    others : see :class:`seamseg.inference.options.InferenceOptions`

    Raises
    ------
    seamseg.utils.errors.InputError
        if something is missing or broken, or the classes of model and data set differ and no table maps them
    """
    given = locals()
    from seamseg.validation.evaluate import EvaluationOptions, evaluate_model

    inference = _inference_options(given)
    options = EvaluationOptions(split, config, meta, device, inference, quiet, legacy, out, class_table)
    return evaluate_model(model, data, options).scores


def train(
    config: str | Path,
    data: str | Path,
    log_dir: str | Path,
    device: str = "auto",
    *,
    resume: str | Path | None = None,
    pretrain: str | Sequence[str] = (),
    pretrain_classes: str | None = None,
    overrides: Overrides = (),
    components: str | Path | Sequence[str | Path] = (),
    callbacks: Sequence[Callback] = (),
    restart: bool = False,
) -> TrainResult:
    """Train a network: `seamseg.train("cityscapes_r50", "data", "runs/city", pretrain="body:resnet50.pth")`.

    Under torchrun each process calls it. Returns :class:`seamseg.training.result.TrainResult`: `scores["PQ"]`, `best`,
    `history` and the rest.

    Parameters
    ----------
    config : INI file, or the name of a packaged experiment
    data : dataset folder
    log_dir : run folder, created if needed
    device : auto, cpu, cuda or cuda:N
    resume, pretrain, pretrain_classes : see :class:`seamseg.training.run.TrainingOptions`
    overrides : configuration keys
    components : files or modules of components, see docs/how-to/extend.md
    callbacks : follow the training, see :class:`seamseg.training.callbacks.Callback`
    restart : overwrite another training in `log_dir`, which is refused otherwise

    Raises
    ------
    seamseg.utils.errors.InputError
        if the configuration, the data set or a file of weights is wrong
    seamseg.utils.errors.SeamsegError
        if a loss is not finite, or a file cannot be written
    """
    from seamseg.training.run import TrainingOptions, run_training

    start = (resume, tuple(map(str, _several(pretrain))), pretrain_classes)
    changes = _key_values(overrides, components)
    options = TrainingOptions(config, data, log_dir, *start, False, changes, device, callbacks, restart)
    return run_training(options)


def export(
    model: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    meta: str | Path | None = None,
    *,
    size: tuple[int, int] | None = None,
    dynamic: bool = False,
    part: str = "all",
    precision: str = "fp32",
    int8: str | Path | None = None,
    calibrate: int = 64,
    opset: int | None = None,
    check: str | Path | Sequence[str | Path] = (),
    force: bool = False,
    licence: str = "",
    overrides: Overrides = (),
    components: str | Path | Sequence[str | Path] = (),
) -> ExportReport:
    """Export a network to `.onnx` or `.pt2` and compare the file with it: `seamseg.export("runs/city", "city.onnx")`.

    Parameters
    ----------
    model, config, meta : see :func:`load`
    out : file to write
    components : see :func:`load`
    others : see :class:`seamseg.deploy.source.ExportOptions`

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model is missing or broken, or an option is out of range
    seamseg.utils.errors.SeamsegError
        if the export fails, or the file computes something else than the network
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "out", "components")}
    from seamseg.deploy.export import export_model
    from seamseg.deploy.source import ExportOptions

    changes = _key_values(overrides, components)
    return export_model(model, out, ExportOptions(**{**given, "check": _several(check), "overrides": changes}))


def serve(
    model: str | Path,
    device: str = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch_size: int | None = None,
    batch_wait: float = 0.0,
    queue: int = 32,
    max_upload: float = 32.0,
    max_megapixels: float = 50.0,
    timeout: float = 60.0,
    score_threshold: float | None = None,
    overlap_threshold: float | None = None,
    min_stuff_area: int | None = None,
    shortest_size: int | None = None,
    longest_max_size: int | None = None,
    size: int | None = None,
    preview: bool = False,
    tiles: str | int = "auto",
    tile_overlap: int | None = None,
    tta: str | Augmentation | None = None,
    tta_fusion: str = "mean",
    classes: str | Sequence[str] | None = None,
    precision: str = "fp32",
    compile: bool = False,
    cuda_graphs: bool = False,
    pad_to: int = 1,
    overrides: Overrides = (),
    components: str | Path | Sequence[str | Path] = (),
) -> int:
    """Serve a model over HTTP until SIGINT or SIGTERM: `seamseg.serve("runs/city", port=8080)`.

    Parameters
    ----------
    model, device, config, meta : see :func:`load`
    host, port : address to listen on; port 0 for a free one
    batch_size, batch_wait, queue, max_upload, max_megapixels, timeout : see :class:`seamseg.serving.app.ServeOptions`
    components : see :func:`load`
    others : see :class:`seamseg.inference.options.InferenceOptions`

    Returns
    -------
    number of requests in progress that were cut off at the end

    Raises
    ------
    seamseg.utils.errors.InputError
        if the model or the address is wrong, or a package of the extra `serve` is missing
    seamseg.utils.errors.SeamsegError
        if the port is in use or not allowed
    """
    given = locals()
    from seamseg.utils.errors import require_packages

    require_packages("starlette", "uvicorn", "python_multipart", "prometheus_client", extra="serve")
    from seamseg.serving.app import ServeOptions
    from seamseg.serving.server import serve_model

    options = ServeOptions(batch_size, batch_wait, queue, max_upload, max_megapixels, timeout)
    return serve_model(model, device, config, meta, _inference_options(given), options, host, port).cut_off


def _inference_options(given: Mapping[str, Any]) -> InferenceOptions:
    """Return the options among the arguments of a function."""
    from dataclasses import fields

    from seamseg.inference.options import InferenceOptions

    found = {field.name: given[field.name] for field in fields(InferenceOptions) if field.name in given}
    return InferenceOptions(**{**found, "overrides": _key_values(given["overrides"], given["components"])})


def _key_values(overrides: Overrides, components: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Return overrides as texts, with those that import the components."""
    given = overrides if not isinstance(overrides, Mapping) else [f"{key}={value}" for key, value in overrides.items()]
    return (*_several(given), *(f"general.components={name}" for name in _several(components)))


def _several(values: Any) -> tuple[Any, ...]:
    """Return one or several texts or paths as several."""
    return (values,) if isinstance(values, (str, PathLike)) else tuple(values)
