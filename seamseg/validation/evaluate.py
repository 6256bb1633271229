"""Score a trained model on a split of a dataset folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.model_path import is_exported, local_model
from seamseg.data.input_size import InputSize
from seamseg.inference.predictor import OpenedModel, build_predictor, open_for_inference
from seamseg.maps.evaluation.scores import PanopticScores, Scores
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.distributed import distributed
from seamseg.utils.errors import InputError
from seamseg.utils.output import echo, warn
from seamseg.validation.class_mapping import ClassMapping
from seamseg.validation.folder import EvaluationWriter
from seamseg.validation.options import EvaluationOptions
from seamseg.validation.validator import Validator, scorer_of


def evaluate_model(options: EvaluationOptions) -> Scores:
    """Score the results that `predict` gives with the same options; joins the processes of torchrun if there are any.

    InputError if the classes of model and data set differ and no table maps them.
    """
    model, data = options.model, options.data
    path = local_model(model)
    # exported networks take arrays, and choose their devices themselves
    with distributed("cpu" if is_exported(path) else options.device) as world:
        device = options.device if is_exported(path) else world.device
        opened = open_for_inference(path, device, options.config, options.meta, options)
        scorer = scorer_of(opened.kind)
        if scorer is None:
            raise InputError(f"{model}: a model of kind {opened.kind} has no evaluation on a data set folder")
        split = options.split or opened.config.dataloader.val_set
        if not split:
            raise InputError(
                f"{model}: its configuration names no [dataloader] val_set; name a split with `split=NAME`"
            )
        if options.out is not None and not scorer.of_maps:
            raise InputError(f"{model}: is a model for {opened.kind}; an evaluation folder holds panoptic maps")
        size = _input_size(opened, options)
        validator = Validator.open(data, split, opened.config, world, options.legacy, options.quiet, size)
        # as in the COCO results of `predict`; of a panoptic map all detections count
        least_score = 0.0 if scorer.of_maps else options.score_threshold or 0.0
        mapping = _class_mapping(options, opened, validator.metadata, scorer.of_things)
        mapped = None if mapping is None else mapping.mapped_classes()
        if mapped is not None and mapped.missing and world.is_main:
            missing = f"{len(mapped.missing)} of {len(mapped.sources)} classes: {', '.join(mapped.missing)}"
            text = f"{data}: {opened.name} has no class for {missing}; they count as missed where they occur"
            warn(text, stacklevel=2)
        validator = replace(validator, mapping=mapping, least_score=least_score)
        if options.legacy and options.tiles == "auto":
            # as the original
            options = replace(options, tiles="off")
        predictor = build_predictor(opened, options, size)
        # the writer below reads no detections
        predictor.map_only = validator.map_only
        if predictor.network.averaged and world.is_main and not options.quiet:
            echo(f"{opened.name}: scoring the moving average of its weights", file=sys.stderr)
        writer = None
        if options.out is not None:
            writer = EvaluationWriter(options.out, validator.dataset.reader, world, predictor.map_formats)
        scores = validator.score(predictor, writer, f"evaluate {split}")
        if mapped is not None:
            scores = replace(scores, mapped=mapped)
        if writer is not None:
            assert isinstance(scores, PanopticScores)
            by_table = "" if mapped is None else f", classes mapped by {Path(mapped.table).name}"
            writer.finish(world, f"{Path(model).name} on {split} of {Path(data).name}{by_table}", scores)
        return scores


def _input_size(opened: OpenedModel, options: EvaluationOptions) -> InputSize:
    size = opened.input_size(options)
    if options.legacy and options.size is None and options.longest_max_size is None and not options.preview:
        # the original knows no other size
        return InputSize(options.shortest_size or opened.config.dataloader.shortest_size, max_size=size.max_size)
    return size


def _class_mapping(
    options: EvaluationOptions, opened: OpenedModel, classes: Metadata, only_things: bool
) -> ClassMapping | None:
    """Return the mapping of a table to the classes of a data set; None without a table, after checking the classes."""
    if options.class_table is None:
        check_same_classes(opened.metadata, opened.name, classes, str(options.data))
        return None
    table = ClassTable(classes, str(options.class_table), "class_table")
    return ClassMapping.of(table, opened.metadata, opened.name, only_things)


def check_same_classes(of_model: Metadata, model: str, of_data: Metadata, data: str) -> None:
    """Raise InputError if number or order of the classes of a model and a data set differ; warn if names differ."""
    have, want = (of_model.num_stuff, of_model.num_thing), (of_data.num_stuff, of_data.num_thing)
    if have != want:
        raise InputError(
            f"{data}: the data set has {want[0]} stuff and {want[1]} thing classes, but {model} was trained on "
            f"{have[0]} and {have[1]}; use the data set it was made for, or map them with `class_table=TABLE`"
        )
    names = list(zip(of_model.categories, of_data.categories))
    other = next(((i, *pair) for i, pair in enumerate(names) if pair[0] != pair[1]), None)
    if other is None:
        return
    where = f"class {other[0]} is {other[1]!r} in {model} and {other[2]!r} in {data}"
    if other[1] in of_data.categories or other[2] in of_model.categories:
        raise InputError(f"{where}: the classes are in another order; map them by name with `class_table=names`")
    warn(f"{where}; they are treated as the same class", stacklevel=2)
