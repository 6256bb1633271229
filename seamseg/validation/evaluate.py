"""Score a trained model on a split of a dataset folder, and write the evaluation folder."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from PIL import Image

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.model_path import library_of, local_model
from seamseg.data.input_size import InputSize
from seamseg.data.reader import FolderReader, Reader
from seamseg.inference.predictor import OpenedModel, build_predictor, open_for_inference
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.record import (
    MAPS,
    Evaluation,
    ImageRecord,
    MapFiles,
    SegmentRecord,
    begin_evaluation,
    image_record,
    write_images,
    write_summary,
)
from seamseg.maps.evaluation.scores import PanopticScores, Scores
from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.formats.coco_writer import CocoEntry, CocoPanopticWriter
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import MapFormat
from seamseg.maps.prepare.export import with_boxes
from seamseg.maps.visualize.maps import draw_map
from seamseg.utils.distributed import World, distributed, gather_objects, sum_over_processes
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.output import echo, warn
from seamseg.utils.parallel import BackgroundWriter
from seamseg.validation.class_mapping import ClassMapping
from seamseg.validation.options import EvaluationOptions
from seamseg.validation.validator import PanopticValidation, Validator, scorer_of


def evaluate_model(options: EvaluationOptions) -> Scores:
    """Score the results that `predict` gives with the same options; joins the processes of torchrun if there are any.

    InputError if the classes of model and data set differ and no table maps them.
    """
    model, data = options.model, options.data
    path = local_model(model)
    # exported networks take arrays, and choose their devices themselves
    is_exported = library_of(path) == "exported"
    with distributed("cpu" if is_exported else options.device) as world:
        device = options.device if is_exported else world.device
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
        if mapped is not None and mapped.missing and world.rank == 0:
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
        if predictor.network.averaged and world.rank == 0 and not options.quiet:
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


class EvaluationWriter:
    """Observer of a :class:`seamseg.validation.validator.Validator` that writes an evaluation folder.

    It has the files of :mod:`seamseg.maps.evaluation.record`, `ground_truth/` and `prediction/` with their JSONs, and
    an image for each of `maps`, the output maps of custom heads. Maps are written image by image; in :meth:`finish` the
    main process writes the rest, which is kept in memory, some 10 KB per image. InputError unless the split is that of
    a dataset folder, whose images the evaluation folder refers to.
    """

    def __init__(
        self,
        out: str | Path,
        reader: Reader,
        world: World,
        maps: Mapping[str, MapFormat] = MappingProxyType({}),
    ) -> None:
        if not isinstance(reader, FolderReader):
            raise InputError(f"`out={out}`: an evaluation folder needs images in files: [dataloader] reader = folder")
        dataset = reader.folder
        self.out = Path(out)
        if world.rank == 0:
            begin_evaluation(self.out)
        self.dataset = dataset
        self.maps = maps
        self.ground_truth = CocoPanopticWriter(self.out / "ground_truth.json", dataset.metadata)
        self.prediction = CocoPanopticWriter(self.out / "prediction.json", dataset.metadata)
        self.records: list[ImageRecord] = []
        self._entries: list[tuple[CocoEntry, CocoEntry]] = []
        self._images = dataset.root / "img"
        self._confusion = ConfusionMatrix(dataset.metadata.num_classes)
        self._background = BackgroundWriter()

    def __call__(self, validated: PanopticValidation) -> None:
        """Write the maps of an image and keep its record, in the background."""
        self._confusion.merge(validated.counts.confusion)
        self._background.submit(self._write, validated)

    def _write(self, validated: PanopticValidation) -> None:
        item, num_stuff = validated.item, self.dataset.metadata.num_stuff
        image_file = self.dataset.image_path(item.id).relative_to(self._images).as_posix()
        ids, truth = gt_segments_from_instances(item.mask.numpy(), item.cat, item.iscrowd, num_stuff, item.id)
        gt = self.ground_truth.write_map(item.id, ids, with_boxes(ids, truth, num_stuff), image_file)
        prediction = self.prediction.write(item.id, validated.result, image_file)
        self._entries.append((gt, prediction))
        gt_entry, pred_entry = gt["annotation"], prediction["annotation"]
        names = gt_entry["file_name"], pred_entry["file_name"]
        record = image_record(validated.comparison, validated.counts.scores(), ids.shape, item.id, image_file, *names)
        # the writers assign new ids, with the colours of the classes
        gt_id = {s.id: entry["id"] for s, entry in zip(truth, gt_entry["segments_info"])}
        pred_id = {s.id: entry["id"] for s, entry in zip(validated.comparison.pred, pred_entry["segments_info"])}
        written = {}
        for key, spec in self.maps.items():
            written[key] = f"{key}/{names[1]}"
            path = self.out / MAPS / written[key]
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn = draw_map(validated.prediction.maps[key], spec, validated.result.size)
            with replacing(path) as temporary:
                Image.fromarray(drawn).save(temporary, "PNG", compress_type=zlib.Z_RLE)
        self.records.append(
            replace(
                record,
                ground_truth=[_renamed(s, gt_id, pred_id) for s in record.ground_truth],
                prediction=[_renamed(s, pred_id, gt_id) for s in record.prediction],
                maps=written,
            )
        )

    def finish(self, world: World, title: str, scores: PanopticScores) -> None:
        """Gather the records of all processes and write the summary; a collective call. `title` is for the report."""
        self._background.finish()
        confusion = sum_over_processes(world, torch.from_numpy(self._confusion.counts)).numpy()
        records, entries = gather_objects(world, self.records), gather_objects(world, self._entries)
        if world.rank > 0:
            return
        pairs = [pair for part in entries for pair in part]
        maps = []
        for k, writer in enumerate((self.ground_truth, self.prediction)):
            writer.write_json([pair[k] for pair in pairs])
            maps.append(MapFiles(writer.json_path, writer.folder))
        every = [record for part in records for record in part]
        write_images(self.out, sorted(every, key=lambda record: str(record.image_id)))
        metadata = self.dataset.metadata
        summary = Evaluation(
            self.out,
            title,
            scores.to_json(),
            self.ground_truth.classes,
            [(r, g, b) for r, g, b in metadata.palette],
            confusion,
            maps[0],
            maps[1],
            self._images,
        )
        write_summary(summary)


def _renamed(segment: SegmentRecord, own: dict[int, int], other: dict[int, int]) -> SegmentRecord:
    partner = None if segment.partner is None else other[segment.partner]
    return replace(segment, id=own[segment.id], partner=partner)
