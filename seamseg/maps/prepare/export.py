"""Exports the ground truth of a dataset folder as COCO panoptic, Cityscapes or Mapillary Vistas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.cityscapes.labels import INSTANCES_FROM
from seamseg.maps.formats.cityscapes.layout import VOID_LABEL, city_of, frame_name, with_label_ids
from seamseg.maps.formats.coco_writer import CocoEntry, CocoPanopticWriter
from seamseg.maps.formats.label_png import instance_map, label_map, write_grey_png
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.maps.formats.vistas import (
    INSTANCES_PER_LABEL,
    config,
    group_labels,
    image_stem,
    is_group,
    vistas_labels,
    void_label,
    with_panoptic_ids,
)
from seamseg.maps.idmaps.segments import areas_and_boxes
from seamseg.maps.panoptic_map import Segment, SegmentInfo
from seamseg.maps.prepare.cityscapes import SPLITS
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.writer import store_image
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_json
from seamseg.utils.parallel import available_cores, threaded_map
from seamseg.utils.progress import ProgressCallback, no_progress

Made = TypeVar("Made")


class GroundTruthFormat:
    """An export format: its files of a split, and how they are written, in `name` below the output folder."""

    name = ""

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder, self.out = folder, out / self.name

    def targets(self, split: str) -> list[Path]:
        """Return the files and folders of a split."""
        raise NotImplementedError

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        raise NotImplementedError

    def _check_names(self, split: str, name_of: Callable[[str], str]) -> None:
        """Raise InputError if two images would have one name in a format without sub-folders."""
        names = Counter(name_of(image.id) for image in self.folder.split(split))
        for name, count in names.items():
            if count > 1:
                raise InputError(f"{count} images of {split} would have the name {name!r}")


class CocoGroundTruth(GroundTruthFormat):
    """`OUT/coco/panoptic_<split>.json` and `OUT/coco/panoptic_<split>/<id>.png`; the images stay in `DATA/img`."""

    name = "coco"

    def targets(self, split: str) -> list[Path]:
        """Return the JSON file and the folder of PNG."""
        return [self.out / f"panoptic_{split}.json", self.out / f"panoptic_{split}"]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        dataset_to_coco_panoptic(self.folder, split, self.targets(split)[0], options.workers, options.progress)


class CityscapesGroundTruth(GroundTruthFormat):
    """`OUT/cityscapes/gtFine/<split>/<city>/<frame>_gtFine_{instanceIds,labelIds}.png` and images in `leftImg8bit/`.

    Instances are label * 1000 + number from 0 (16 bit), stuff and crowds the label alone, void is label 0. The split
    `coarse` becomes `gtCoarse/train_extra`. A class that is not in Cityscapes is an InputError.
    """

    name = "cityscapes"

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        super().__init__(folder, out)
        self._classes = with_label_ids(folder.metadata, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """Return the folders of annotations and images of a split."""
        sources = {ours: (kind, theirs) for theirs, (kind, ours) in SPLITS.items()}
        kind, name = sources.get(split, ("gtFine", split))
        return [self.out / kind / name, self.out / "leftImg8bit" / name]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        annotations, photos = self.targets(split)
        kind, labels, num_stuff = annotations.parent.name, self._classes.original_ids, self._classes.num_stuff

        def export(image: ImageInfo) -> None:
            frame = frame_name(image.id)
            city, (ids, segments) = city_of(frame), read_map(self.folder, image)
            instances = instance_map(ids, segments, labels, num_stuff, INSTANCES_FROM, 1, VOID_LABEL, image.id)
            pixels = label_map(ids, segments, labels, VOID_LABEL)
            photo = self.folder.image_path(image.id)
            target = photos / city / f"{frame}_leftImg8bit{photo.suffix.lower()}"
            store_image(photo, target, options.link)
            write_grey_png(annotations / city / f"{frame}_{kind}_labelIds.png", pixels)
            write_grey_png(annotations / city / f"{frame}_{kind}_instanceIds.png", instances)

        self._check_names(split, frame_name)
        for_each(export, self.folder, split, options.workers, options.progress, f"{split}, cityscapes")


class VistasGroundTruth(GroundTruthFormat):
    """`OUT/vistas/`: `config.json` and, by split, `images/`, `instances/`, `labels/`, `panoptic/panoptic_2018.json`.

    Instances are label * 256 + number from 0 (16 bit); labels are the original ids of the classes, void is the label
    after the last. Crowds have a separate label, `<class>-group`, which is not evaluated. The splits `train` and `val`
    are named `training` and `validation`. Original ids that are no valid labels are an InputError.
    """

    name = "vistas"

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        super().__init__(folder, out)
        self._labels = vistas_labels(folder.metadata, str(folder.root))
        self._groups = group_labels(folder.metadata, self._labels, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """Return the folder of a split."""
        return [self.out / {"train": "training", "val": "validation"}.get(split, split)]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        (root,), metadata, each = self.targets(split), self.folder.metadata, INSTANCES_PER_LABEL
        labels, void = [*self._labels, *self._groups.values()], void_label(self._labels)
        panoptic = CocoPanopticWriter(
            root / "panoptic" / "panoptic_2018.json", with_panoptic_ids(metadata, self._labels), root / "panoptic"
        )

        def export(image: ImageInfo) -> CocoEntry:
            name, (ids, truth) = image_stem(image.id), read_map(self.folder, image)
            segments = self._with_groups(truth, image.id)
            instances = instance_map(ids, segments, labels, metadata.num_stuff, each, each, void * each, image.id)
            photo = self.folder.image_path(image.id)
            target = root / "images" / f"{name}{photo.suffix.lower()}"
            store_image(photo, target, options.link)
            write_grey_png(root / "labels" / f"{name}.png", label_map(ids, segments, labels, void))
            write_grey_png(root / "instances" / f"{name}.png", instances)
            return panoptic.write_map(name, ids, with_boxes(ids, truth, metadata.num_stuff), target.name)

        self._check_names(split, image_stem)
        entries = for_each(export, self.folder, split, options.workers, options.progress, f"{split}, vistas")
        panoptic.write_json(entries)
        write_json(self.out / "config.json", config(metadata, self._labels, self._groups), indent=1)

    def _with_groups(self, segments: Sequence[SegmentInfo], image: str) -> list[SegmentInfo]:
        """Return the segments, with the group label for crowds; InputError for a single instance of a group class."""
        metadata = self.folder.metadata
        of_group = {c: metadata.num_classes + k for k, c in enumerate(self._groups)}
        for segment in segments:
            name = metadata.categories[segment.category]
            if metadata.is_thing(segment.category) and is_group(name) and not segment.iscrowd:
                raise InputError(
                    f"image {image}: a single instance of {name!r}, but all regions of a class whose name ends in "
                    "'group' are crowds in Vistas; use the format coco or cityscapes"
                )
        return [
            replace(s, category=of_group[s.category]) if s.iscrowd and s.category in of_group else s for s in segments
        ]


FORMATS: dict[str, type[GroundTruthFormat]] = {
    made.name: made for made in (CocoGroundTruth, CityscapesGroundTruth, VistasGroundTruth)
}


def export_dataset(
    data: str | Path,
    out: str | Path,
    splits: Sequence[str] = (),
    formats: Sequence[str] = ("coco",),
    options: ConversionOptions = ConversionOptions(),
    force: bool = False,
) -> dict[str, int]:
    """Write the ground truth of splits of a dataset folder in other formats; return the number of images by split.

    All lists are written if none is named. `formats` are keys of :data:`FORMATS`, each of which gets a folder in `out`;
    `workers` of the options are threads. An existing split, which `force` overwrites, and data that a format cannot
    represent are an InputError.
    """
    folder = DatasetFolder(data)
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        given = f"`formats={','.join(formats)}`"
        raise InputError(f"{given}: choose among {', '.join(FORMATS)}, separated by commas")
    names = list(dict.fromkeys(splits or folder.splits))
    if not names:
        raise InputError(f"{folder.root / 'lst'}: no list of images, nothing to export")
    counts = {name: len(folder.split(name)) for name in names}
    writers = [FORMATS[name](folder, Path(out)) for name in dict.fromkeys(formats)]
    targets = Counter(target for writer in writers for name in names for target in writer.targets(name))
    if (twice := next((target for target, count in targets.items() if count > 1), None)) is not None:
        raise InputError(f"{twice}: two splits would be written to it")
    existing = [t for t in targets if (any(t.iterdir()) if t.is_dir() else t.exists())]
    if existing and not force:
        raise InputError(f"{existing[0]}: exists already; choose another folder, or overwrite it with `force=True`")
    for writer in writers:
        for name in names:
            writer.write(name, options)
    return counts


def dataset_to_coco_panoptic(
    dataset: DatasetFolder,
    split: str,
    json_path: str | Path,
    workers: int | None = 1,
    progress: ProgressCallback = no_progress,
) -> Path:
    """Write the ground truth of a split in the COCO panoptic format, to evaluate predictions against; return the path.

    Image ids are as in the dataset folder; `workers` are threads, None for one per processor.
    """
    writer = CocoPanopticWriter(json_path, dataset.metadata)

    def export(image: ImageInfo) -> CocoEntry:
        ids, segments = read_map(dataset, image)
        boxed = with_boxes(ids, segments, dataset.metadata.num_stuff)
        return writer.write_map(image.id, ids, boxed, dataset.image_path(image.id).name)

    return writer.write_json(for_each(export, dataset, split, workers, progress, f"exporting {split}"))


def read_map(folder: DatasetFolder, image: ImageInfo) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Read segment ids, `H x W` int32 (0 void), and segments: one per stuff class and per class of crowds.

    Where instances overlap, the first layer wins.
    """
    mask, num_stuff = folder.read_mask(image.id), folder.metadata.num_stuff
    return gt_segments_from_instances(mask, image.cat, image.iscrowd, num_stuff, image.id)


def for_each(
    function: Callable[[ImageInfo], Made],
    folder: DatasetFolder,
    split: str,
    workers: int | None,
    progress: ProgressCallback,
    desc: str,
) -> list[Made]:
    """Call a function on all images of a split, in threads, with progress."""
    images = folder.split(split)
    return list(progress(threaded_map(function, images, workers or available_cores()), len(images), desc))


def with_boxes(ids: np.ndarray, segments: Sequence[SegmentInfo], num_stuff: int) -> list[Segment]:
    """Return ground-truth segments with the boxes of their pixels in the id map."""
    boxes = areas_and_boxes(ids, 1 + max((s.id for s in segments), default=0))[1].astype(int).tolist()
    return [
        Segment(s.id, s.category, s.category >= num_stuff, None, int(s.area or 0), tuple(boxes[s.id]), s.iscrowd)
        for s in segments
    ]
