"""Ground truth in the layout of Mapillary Vistas 1.2, which `prepare vistas` reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo
from seamseg.data.prepare.convert import Options
from seamseg.data.prepare.vistas_labels import INSTANCES_PER_LABEL, is_group
from seamseg.data.prepare.writer import put_photo
from seamseg.engine.ground_truth.frames import TrueMap, check_names, for_each, read_map
from seamseg.engine.layouts.pictures import instance_picture, label_picture, write_grey_png
from seamseg.engine.layouts.vistas import (
    config,
    group_labels,
    photo_stem,
    vistas_labels,
    void_label,
    with_panoptic_ids,
)
from seamseg.errors import InputError
from seamseg.evaluation.coco_writer import CocoPanopticWriter, with_boxes
from seamseg.evaluation.matching import SegmentInfo
from seamseg.files import write_json

_SPLITS = {"train": "training", "val": "validation"}


class VistasGroundTruth:
    """`OUT/vistas/`: `config.json` and, by split, `images/`, `instances/`, `labels/`, `panoptic/panoptic_2018.json`.

    Instances are label * 256 + number from 0 (16 bit); labels are the original ids of the classes, void the label after
    the last. Crowds have a label of their own, `<class>-group`, which is not evaluated. The splits `train` and `val`
    are called `training` and `validation`.

    Raises
    ------
    InputError
        if the original ids of the classes are no labels
    """

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "vistas"
        self._labels = vistas_labels(folder.metadata, str(folder.root))
        self._groups = group_labels(folder.metadata, self._labels, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """The folder of a split"""
        return [self.out / _SPLITS.get(split, split)]

    def write(self, split: str, options: Options) -> None:
        """Write a split."""
        (root,), link, metadata = self.targets(split), options.link, self.folder.metadata
        labels, void = [*self._labels, *self._groups.values()], void_label(self._labels)
        panoptic = CocoPanopticWriter(
            root / "panoptic" / "panoptic_2018.json", with_panoptic_ids(metadata, self._labels), root / "panoptic"
        )

        def export(image: ImageInfo) -> None:
            name, truth = photo_stem(image.id), read_map(self.folder, image)
            segments = self._with_groups(truth, image.id)
            instances = instance_picture(
                truth.ids,
                segments,
                labels,
                metadata.num_stuff,
                INSTANCES_PER_LABEL,
                INSTANCES_PER_LABEL,
                void * INSTANCES_PER_LABEL,
                image.id,
            )
            pixels = label_picture(truth.ids, segments, labels, void)
            photo = self.folder.image_path(image.id)
            target = root / "images" / f"{name}{photo.suffix.lower()}"
            put_photo(photo, target, link)
            write_grey_png(root / "labels" / f"{name}.png", pixels)
            write_grey_png(root / "instances" / f"{name}.png", instances)
            panoptic.add_map(name, truth.ids, with_boxes(truth.ids, truth.segments, metadata.num_stuff), target.name)

        images = self.folder.split(split)
        check_names(images, photo_stem)
        for_each(export, images, options, f"{split}, vistas")
        panoptic.write_json()
        write_json(self.out / "config.json", config(metadata, self._labels, self._groups), indent=1)

    def _with_groups(self, truth: TrueMap, image: str) -> list[SegmentInfo]:
        """The segments, crowds with their group, whose index follows the classes; InputError for a group of one."""
        metadata = self.folder.metadata
        of_group = {c: metadata.num_classes + k for k, c in enumerate(self._groups)}
        for segment in truth.segments:
            name = metadata.categories[segment.category]
            if metadata.is_thing(segment.category) and is_group(name) and not segment.iscrowd:
                raise InputError(
                    f"image {image}: a single instance of {name!r}, but all regions of a class whose name ends in "
                    "'group' are crowds in Vistas: use the format coco or cityscapes"
                )
        return [
            replace(s, category=of_group[s.category]) if s.iscrowd and s.category in of_group else s
            for s in truth.segments
        ]
