"""Score a trained model on a split of a dataset folder."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.checkpoints.bundle import ModelFile, open_model
from seamseg.checkpoints.model_path import is_exported, local_model
from seamseg.checkpoints.snapshot import load_into
from seamseg.evaluation.scores import Scores
from seamseg.formats.metadata import Metadata
from seamseg.inference.exported import ExportedModel
from seamseg.inference.options import InferenceOptions
from seamseg.models.build import build_network
from seamseg.utils.distributed import World, distributed
from seamseg.utils.errors import InputError, option
from seamseg.validation.folder import EvaluationWriter
from seamseg.validation.validator import SCORERS, ExportedModule, Validator


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of :func:`evaluate_model`.

    Parameters
    ----------
    split : name of the list; `dataloader.val_set` of the configuration if None
    config, meta : instead of the model's own
    device : auto, cpu, cuda or cuda:N; see :func:`seamseg.inference.onnx_engines.open_onnx` for `.onnx`
    overrides : `section.key=value` each
    quiet : show no progress
    legacy : see :class:`Validator`
    out : evaluation folder to write (:mod:`seamseg.validation.folder`), not with `legacy`

    Raises
    ------
    InputError
        if `out` and `legacy` are both given
    """

    split: str | None = None
    config: str | Path | None = None
    meta: str | Path | None = None
    device: str = "auto"
    overrides: Sequence[str] = ()
    quiet: bool = False
    legacy: bool = False
    out: str | Path | None = None

    def __post_init__(self) -> None:
        if self.legacy and self.out is not None:
            raise InputError(f"out: {self.out} cannot hold legacy metrics; an evaluation folder uses the official ones")


@dataclass(frozen=True)
class ModelScores:
    """The scores from :func:`evaluate_model`, with the model, split and classes they belong to."""

    scores: Scores
    model: str
    split: str
    metadata: Metadata


def evaluate_model(
    model: str | Path, data: str | Path, options: EvaluationOptions = EvaluationOptions()
) -> ModelScores:
    """Score a trained model on a split of a dataset folder; joins the processes of torchrun if there are any.

    Parameters
    ----------
    model : as for :func:`seamseg.checkpoints.bundle.open_model`, or an exported network (.onnx, .pt2)
    data : dataset folder
    options : split, device, and what to write

    Raises
    ------
    InputError
        if something is missing or broken, or the classes of model and data set differ
    """
    path = local_model(model)
    # exported networks take arrays, and choose their devices themselves
    with distributed("cpu" if is_exported(path) else options.device) as world:
        opened = _open(path, options)
        split = options.split or opened.config.dataloader.val_set
        if not split:
            raise InputError(
                f"{model}: its configuration names no [dataloader] val_set; name a split with {option('split', 'NAME')}"
            )
        if options.out is not None and opened.config.kind != "panoptic":
            raise InputError(f"{model}: is a model for {opened.config.kind}; an evaluation folder holds panoptic maps")
        exported = opened if isinstance(opened, ExportedModel) else None
        validator = Validator.open(data, split, opened.config, world, options.legacy, options.quiet, exported)
        check_same_classes(opened.metadata, opened.name, validator.dataset.metadata, str(data))
        net = _network(opened, world, options.quiet)
        writer = None if options.out is None else EvaluationWriter(options.out, validator.dataset.folder, world)
        scores = validator(net, writer, f"evaluate {split}")
        if writer is not None:
            writer.finish(world, f"{Path(model).name} on {split} of {Path(data).name}", scores)
        return ModelScores(scores, opened.name, split, validator.dataset.metadata)


def _open(model: Path, options: EvaluationOptions) -> ModelFile | ExportedModel:
    if not is_exported(model):
        return open_model(model, options.config, options.meta, list(options.overrides))
    settings = InferenceOptions(overrides=options.overrides)
    opened = ExportedModel(model, options.device, options.config, options.meta, settings)
    if opened.kind not in SCORERS:
        raise InputError(f"{model}: a model of kind {opened.kind} has no evaluation on a data set folder")
    return opened


def _network(opened: ModelFile | ExportedModel, world: World, quiet: bool) -> Any:
    if isinstance(opened, ExportedModel):
        return ExportedModule(opened.build(InferenceOptions()))
    net = build_network(opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
    report = load_into(net, opened.snapshot, strict=True, name=opened.name)
    if report.averaged and world.is_main and not quiet:
        print(f"{opened.name}: scoring the moving average of its weights", file=sys.stderr)
    return net.to(world.device)


def check_same_classes(of_model: Metadata, model: str, of_data: Metadata, data: str) -> None:
    """Raise InputError if number or order of the classes of a model and a data set differ; warn if names differ."""
    have, want = (of_model.num_stuff, of_model.num_thing), (of_data.num_stuff, of_data.num_thing)
    if have != want:
        raise InputError(
            f"{data}: the data set has {want[0]} stuff and {want[1]} thing classes, but {model} was trained on "
            f"{have[0]} and {have[1]}; use the data set it was made for"
        )
    names = list(zip(of_model.categories, of_data.categories))
    other = next(((i, *pair) for i, pair in enumerate(names) if pair[0] != pair[1]), None)
    if other is None:
        return
    where = f"class {other[0]} is {other[1]!r} in {model} and {other[2]!r} in {data}"
    if other[1] in of_data.categories or other[2] in of_model.categories:
        raise InputError(f"{where}: the classes are in another order; use the data set the model was made for")
    warnings.warn(f"{where}; they are treated as the same class", stacklevel=2)
