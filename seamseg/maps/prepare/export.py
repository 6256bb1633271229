"""Exports the ground truth of a dataset folder as COCO panoptic, Cityscapes or Mapillary Vistas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from seamseg.maps.evaluation.segments import gt_segments_from_instances
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.cityscapes.labels import INSTANCES_FROM
from seamseg.maps.formats.cityscapes.layout import VOID_LABEL, city_of, frame_name, with_label_ids
from seamseg.maps.formats.coco_writer import CocoPanopticWriter
from seamseg.maps.formats.label_png import instance_map, label_map, write_grey_png
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.maps.formats.vistas import (
    INSTANCES_PER_LABEL,
    config,
    group_labels,
    is_group,
    photo_stem,
    vistas_labels,
    void_label,
    with_panoptic_ids,
)
from seamseg.maps.idmaps.id_runs import id_runs_of
from seamseg.maps.panoptic_map import Segment, SegmentInfo
from seamseg.maps.prepare.cityscapes import SPLITS
from seamseg.maps.prepare.convert import DEFAULTS, ConversionOptions
from seamseg.maps.prepare.writer import no_progress, store_photo
from seamseg.utils.errors import InputError
from seamseg.utils.files import refuse_links, write_json
from seamseg.utils.parallel import available_cores, threaded_map
from seamseg.utils.progress import ProgressCallback


@dataclass(frozen=True)
class GroundTruthMap:
    """Segment ids of an image, `H x W` int32 (0 void), and their segments: one per stuff class and per crowd."""

    ids: np.ndarray
    segments: list[SegmentInfo]


def read_map(folder: DatasetFolder, image: ImageInfo) -> GroundTruthMap:
    """Read the map of an image; where instances overlap, the first layer wins."""
    mask = folder.read_mask(image.id)
    return GroundTruthMap(
        *gt_segments_from_instances(mask, image.cat, image.iscrowd, folder.metadata.num_stuff, image.id)
    )


def check_names(images: Sequence[ImageInfo], name_of: Callable[[str], str]) -> None:
    """Raise InputError if two images would have one name in a format without sub-folders."""
    owners: dict[str, str] = {}
    for image in images:
        owner = owners.setdefault(name_of(image.id), image.id)
        if owner != image.id:
            raise InputError(f"images {owner!r} and {image.id!r} would both have the name {name_of(image.id)!r}")


def for_each(
    function: Callable[[ImageInfo], None], images: Sequence[ImageInfo], options: ConversionOptions, desc: str
) -> None:
    """Call a function on all images, in threads, with progress."""
    done: Iterable[None] = threaded_map(function, images, options.workers or available_cores())
    for _ in options.progress(done, len(images), desc):
        pass


class CocoGroundTruth:
    """`OUT/coco/panoptic_<split>.json` and `OUT/coco/panoptic_<split>/<id>.png`; the images stay in `DATA/img`."""

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "coco"

    def targets(self, split: str) -> list[Path]:
        """Return the JSON file and the folder of PNG."""
        return [self.out / f"panoptic_{split}.json", self.out / f"panoptic_{split}"]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        workers, target = options.workers or available_cores(), refuse_links(self.out.parent, self.targets(split)[0])
        dataset_to_coco_panoptic(self.folder, split, target, None, workers, options.progress)


_SOURCES = {ours: (kind, theirs) for theirs, (kind, ours) in SPLITS.items()}


class CityscapesGroundTruth:
    """`OUT/cityscapes/gtFine/<split>/<city>/<frame>_gtFine_{instanceIds,labelIds}.png` and images in `leftImg8bit/`.

    Instances are label * 1000 + number from 0 (16 bit), stuff and crowds the label alone, void is label 0. The split
    `coarse` becomes `gtCoarse/train_extra`. A class that is not in Cityscapes is an InputError.
    """

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "cityscapes"
        self._classes = with_label_ids(folder.metadata, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """Return the folders of annotations and images of a split."""
        kind, name = _SOURCES.get(split, ("gtFine", split))
        return [self.out / kind / name, self.out / "leftImg8bit" / name]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        annotations, photos = self.targets(split)
        kind, link, labels = annotations.parent.name, options.link, self._classes.original_ids
        below = partial(refuse_links, self.out.parent)

        def export(image: ImageInfo) -> None:
            frame = frame_name(image.id)
            city, truth = city_of(frame), read_map(self.folder, image)
            instances = instance_map(
                truth.ids, truth.segments, labels, self._classes.num_stuff, INSTANCES_FROM, 1, VOID_LABEL, image.id
            )
            pixels = label_map(truth.ids, truth.segments, labels, VOID_LABEL)
            photo = self.folder.image_path(image.id)
            store_photo(photo, below(photos / city / f"{frame}_leftImg8bit{photo.suffix.lower()}"), link)
            write_grey_png(below(annotations / city / f"{frame}_{kind}_labelIds.png"), pixels)
            write_grey_png(below(annotations / city / f"{frame}_{kind}_instanceIds.png"), instances)

        images = self.folder.split(split)
        check_names(images, frame_name)
        for_each(export, images, options, f"{split}, cityscapes")


_SPLITS = {"train": "training", "val": "validation"}


class VistasGroundTruth:
    """`OUT/vistas/`: `config.json` and, by split, `images/`, `instances/`, `labels/`, `panoptic/panoptic_2018.json`.

    Instances are label * 256 + number from 0 (16 bit); labels are the original ids of the classes, void is the label
    after the last. Crowds have a separate label, `<class>-group`, which is not evaluated. The splits `train` and `val`
    are named `training` and `validation`. Original ids that are no valid labels are an InputError.
    """

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "vistas"
        self._labels = vistas_labels(folder.metadata, str(folder.root))
        self._groups = group_labels(folder.metadata, self._labels, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """Return the folder of a split."""
        return [self.out / _SPLITS.get(split, split)]

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""
        (root,), link, metadata = self.targets(split), options.link, self.folder.metadata
        labels, void = [*self._labels, *self._groups.values()], void_label(self._labels)
        below = partial(refuse_links, self.out.parent)
        panoptic = CocoPanopticWriter(
            root / "panoptic" / "panoptic_2018.json", with_panoptic_ids(metadata, self._labels), root / "panoptic"
        )

        def export(image: ImageInfo) -> None:
            name, truth = photo_stem(image.id), read_map(self.folder, image)
            segments = self._with_groups(truth, image.id)
            instances = instance_map(
                truth.ids,
                segments,
                labels,
                metadata.num_stuff,
                INSTANCES_PER_LABEL,
                INSTANCES_PER_LABEL,
                void * INSTANCES_PER_LABEL,
                image.id,
            )
            pixels = label_map(truth.ids, segments, labels, void)
            photo = self.folder.image_path(image.id)
            target = root / "images" / f"{name}{photo.suffix.lower()}"
            store_photo(photo, below(target), link)
            write_grey_png(below(root / "labels" / f"{name}.png"), pixels)
            write_grey_png(below(root / "instances" / f"{name}.png"), instances)
            panoptic.add_map(name, truth.ids, with_boxes(truth.ids, truth.segments, metadata.num_stuff), target.name)

        images = self.folder.split(split)
        check_names(images, photo_stem)
        for_each(export, images, options, f"{split}, vistas")
        panoptic.write_json()
        write_json(self.out / "config.json", config(metadata, self._labels, self._groups), indent=1)

    def _with_groups(self, truth: GroundTruthMap, image: str) -> list[SegmentInfo]:
        """Return the segments, with the group label for crowds; InputError for a single instance of a group class."""
        metadata = self.folder.metadata
        of_group = {c: metadata.num_classes + k for k, c in enumerate(self._groups)}
        for segment in truth.segments:
            name = metadata.categories[segment.category]
            if metadata.is_thing(segment.category) and is_group(name) and not segment.iscrowd:
                raise InputError(
                    f"image {image}: a single instance of {name!r}, but all regions of a class whose name ends in "
                    "'group' are crowds in Vistas; use the format coco or cityscapes"
                )
        return [
            replace(s, category=of_group[s.category]) if s.iscrowd and s.category in of_group else s
            for s in truth.segments
        ]


class GroundTruthFormat(Protocol):
    """An export format."""

    def targets(self, split: str) -> list[Path]:
        """Return the files and folders of a split."""

    def write(self, split: str, options: ConversionOptions) -> None:
        """Write a split."""


FORMATS: dict[str, Callable[[DatasetFolder, Path], GroundTruthFormat]] = {
    "coco": CocoGroundTruth,
    "cityscapes": CityscapesGroundTruth,
    "vistas": VistasGroundTruth,
}


def export_dataset(
    data: str | Path,
    out: str | Path,
    splits: Sequence[str] = (),
    formats: Sequence[str] = ("coco",),
    options: ConversionOptions = DEFAULTS,
    force: bool = False,
) -> dict[str, int]:
    """Write the ground truth of splits of a dataset folder in other formats.

    Parameters
    ----------
    data : dataset folder
    out : folder that gets a folder for each format
    splits : names of lists; all if empty
    formats : keys of :data:`FORMATS`
    options : options of the conversion; `workers` are threads
    force : overwrite an existing split

    Returns
    -------
    number of images by split

    Raises
    ------
    InputError
        if a split or format is unknown, a split exists already, or a format cannot represent the data
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
    _check_targets_differ(writers, names)
    existing = [t for w in writers for name in names for t in w.targets(name) if _has_content(t)]
    if existing and not force:
        raise InputError(f"{existing[0]}: exists already; choose another folder, or overwrite it with `force=True`")
    for writer in writers:
        for name in names:
            writer.write(name, options)
    return counts


def _check_targets_differ(writers: Sequence[GroundTruthFormat], splits: Sequence[str]) -> None:
    owners: dict[Path, str] = {}
    for writer in writers:
        for split in splits:
            for target in writer.targets(split):
                owner = owners.setdefault(target, split)
                if owner != split:
                    raise InputError(f"{target}: the splits {owner} and {split} would both be written to it")


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def dataset_to_coco_panoptic(
    dataset: DatasetFolder,
    split: str,
    json_path: str | Path,
    folder: str | Path | None = None,
    workers: int = 1,
    progress: ProgressCallback = no_progress,
) -> Path:
    """Write the ground truth of a split in the COCO panoptic format, to evaluate predictions against; return the path.

    Image ids are as in the dataset folder; `workers` are threads.
    """
    writer = CocoPanopticWriter(json_path, dataset.metadata, folder)

    def export(image: ImageInfo) -> None:
        truth = read_map(dataset, image)
        boxed = with_boxes(truth.ids, truth.segments, dataset.metadata.num_stuff)
        writer.add_map(image.id, truth.ids, boxed, dataset.image_path(image.id).name)

    for_each(export, dataset.split(split), ConversionOptions(workers, progress), f"exporting {split}")
    return writer.write_json()


def with_boxes(ids: np.ndarray, segments: Sequence[SegmentInfo], num_stuff: int) -> list[Segment]:
    """Return ground-truth segments with the boxes of their pixels in the id map."""
    boxes = id_runs_of(ids).boxes(1 + max((s.id for s in segments), default=0)).tolist()
    return [
        Segment(s.id, s.category, s.category >= num_stuff, None, int(s.area or 0), tuple(boxes[s.id]), s.iscrowd)
        for s in segments
    ]
