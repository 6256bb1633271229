"""A trained model scored on a split of a dataset folder."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import load_into
from seamseg.evaluation.scores import PanopticScores
from seamseg.formats.metadata import Metadata
from seamseg.models.build import build_network
from seamseg.utils.distributed import distributed
from seamseg.utils.errors import InputError
from seamseg.validation.folder import EvaluationWriter
from seamseg.validation.validator import Validator


@dataclass(frozen=True)
class ModelScores:
    """What :func:`evaluate_model` finds: the scores, and the model, split and classes they belong to."""

    scores: PanopticScores
    model: str
    split: str
    metadata: Metadata


def evaluate_model(
    model: str | Path,
    data: str | Path,
    split: str | None = None,
    config: str | Path | None = None,
    meta: str | Path | None = None,
    device: str = "auto",
    overrides: Sequence[str] = (),
    quiet: bool = False,
    legacy: bool = False,
    out: str | Path | None = None,
) -> ModelScores:
    """Score a trained model on a split of a dataset folder; joins the processes of torchrun if there are any.

    Parameters
    ----------
    model : as for :func:`seamseg.checkpoints.bundle.open_model`
    data : dataset folder
    split : name of the list; `dataloader.val_set` of the configuration if None
    config, meta : instead of the model's own
    device : auto, cpu, cuda or cuda:N
    overrides : `section.key=value` each
    quiet : no progress
    legacy : as :class:`Validator`
    out : evaluation folder to write (:mod:`seamseg.validation.folder`), not with `legacy`

    Raises
    ------
    InputError
        if something is missing, broken, or the model knows other classes than the data set
    """
    if legacy and out is not None:
        raise InputError(f"{out}: not with legacy metrics, since an evaluation folder is of the official kind")
    with distributed(device) as world:
        opened = open_model(model, config, meta, list(overrides))
        split = split or opened.config.dataloader.val_set
        if not split:
            raise InputError(f"{model}: its configuration names no [dataloader] val_set; name a split with --split")
        validator = Validator.open(data, split, opened.config, world, legacy, quiet)
        check_same_classes(opened.metadata, opened.name, validator.dataset.metadata, str(data))
        net = build_network(opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
        report = load_into(net, opened.snapshot, strict=True, name=opened.name)
        if report.averaged and world.is_main and not quiet:
            print(f"{opened.name}: scoring the moving average of its weights", file=sys.stderr)
        net.to(world.device)
        writer = None if out is None else EvaluationWriter(out, validator.dataset.folder, world)
        scores = validator(net, writer, f"evaluate {split}")
        if writer is not None:
            writer.finish(world, f"{Path(model).name} on {split} of {Path(data).name}", scores)
        return ModelScores(scores, opened.name, split, validator.dataset.metadata)


def check_same_classes(of_model: Metadata, model: str, of_data: Metadata, data: str) -> None:
    """InputError if the numbers or the order of the classes of a model and a data set differ; a warning for names."""
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
    warnings.warn(f"{where}; they are taken to be the same", stacklevel=2)
