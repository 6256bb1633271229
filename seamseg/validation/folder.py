"""Write the evaluation folder of a model: predictions and ground truth as files, and the match of each segment."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from PIL import Image

from seamseg.data.reader import FolderReader, Reader
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
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.formats.coco_writer import CocoEntry, CocoPanopticWriter
from seamseg.maps.predictions import MapFormat
from seamseg.maps.prepare.export import with_boxes
from seamseg.maps.visualize.maps import draw_map
from seamseg.utils.distributed import World, gather_objects, sum_over_processes
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.parallel import BackgroundWriter
from seamseg.validation.items import PanopticValidation


class EvaluationWriter:
    """Observer of a :class:`seamseg.validation.validator.Validator` that writes an evaluation folder.

    It has the files of :mod:`seamseg.maps.evaluation.record`, `ground_truth/` and `prediction/` with their JSONs, and
    an image to look at for each of `maps`, the output maps of custom heads. Maps are written image by image; in
    :meth:`finish` the main process writes the rest. The JSON entries and the records of the segments are kept in
    memory, some 10 KB per image. InputError if the split is not that of a dataset folder, whose images the evaluation
    folder refers to.
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
        if world.is_main:
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
        self.records.append(
            replace(
                record,
                ground_truth=[_renamed(s, gt_id, pred_id) for s in record.ground_truth],
                prediction=[_renamed(s, pred_id, gt_id) for s in record.prediction],
                maps=self._write_maps(validated, names[1]),
            )
        )

    def _write_maps(self, validated: PanopticValidation, name: str) -> dict[str, str]:
        written = {}
        for key, spec in self.maps.items():
            written[key] = f"{key}/{name}"
            path = self.out / MAPS / written[key]
            path.parent.mkdir(parents=True, exist_ok=True)
            drawn = draw_map(validated.prediction.maps[key], spec, validated.result.size)
            with replacing(path) as temporary:
                Image.fromarray(drawn).save(temporary, "PNG", compress_type=zlib.Z_RLE)
        return written

    def finish(self, world: World, title: str, scores: PanopticScores) -> None:
        """Gather the records of all processes and write the summary; a collective call. `title` is for the report."""
        self._background.finish()
        confusion = sum_over_processes(world, torch.from_numpy(self._confusion.counts)).numpy()
        records, entries = gather_objects(world, self.records), gather_objects(world, self._entries)
        if not world.is_main:
            return
        pairs = [pair for part in entries for pair in part]
        maps = [
            self._write_list(writer, [pair[k] for pair in pairs])
            for k, writer in enumerate((self.ground_truth, self.prediction))
        ]
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

    def _write_list(self, writer: CocoPanopticWriter, entries: list[CocoEntry]) -> MapFiles:
        writer.write_json(entries)
        return MapFiles(writer.json_path, writer.folder)


def _renamed(segment: SegmentRecord, own: dict[int, int], other: dict[int, int]) -> SegmentRecord:
    partner = None if segment.partner is None else other[segment.partner]
    return replace(segment, id=own[segment.id], partner=partner)
