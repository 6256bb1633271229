"""Ground truth in the layout of Mapillary Vistas 1.2, which `prepare vistas` reads."""

from __future__ import annotations

from pathlib import Path

from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo
from seamseg.data.prepare.convert import Options
from seamseg.data.prepare.writer import put_photo
from seamseg.engine.ground_truth.frames import TrueMap, check_names, for_each, link_of, read_map
from seamseg.engine.layouts.pictures import instance_picture, label_picture, write_grey_png
from seamseg.engine.layouts.vistas import (
    INSTANCES_PER_LABEL,
    config,
    is_group,
    photo_stem,
    vistas_labels,
    void_label,
    with_panoptic_ids,
)
from seamseg.errors import InputError
from seamseg.evaluation.coco_writer import CocoPanopticWriter, with_boxes
from seamseg.files import write_json

_SPLITS = {"train": "training", "val": "validation"}


class VistasGroundTruth:
    """`OUT/vistas/`: `config.json` and, by split, `images/`, `instances/`, `labels/`, `panoptic/panoptic_2018.json`.

    Instances are label * 256 + number from 0 (16 bit); labels are the original ids of the classes, void the label after
    the last. The splits `train` and `val` are called `training` and `validation`.

    Raises
    ------
    InputError
        if the original ids of the classes are no labels
    """

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "vistas"
        self._labels = vistas_labels(folder.metadata, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """The folder of a split"""
        return [self.out / _SPLITS.get(split, split)]

    def write(self, split: str, options: Options) -> None:
        """Write a split."""
        (root,), link, labels = self.targets(split), link_of(options), self._labels
        metadata, void = self.folder.metadata, void_label(labels)
        panoptic = CocoPanopticWriter(
            root / "panoptic" / "panoptic_2018.json", with_panoptic_ids(metadata, labels), root / "panoptic"
        )

        def export(image: ImageInfo) -> None:
            name, truth = photo_stem(image.id), read_map(self.folder, image)
            self._check_crowds(truth, image.id)
            instances = instance_picture(
                truth.ids,
                truth.segments,
                labels,
                metadata.num_stuff,
                INSTANCES_PER_LABEL,
                INSTANCES_PER_LABEL,
                void * INSTANCES_PER_LABEL,
                image.id,
            )
            pixels = label_picture(truth.ids, truth.segments, labels, void)
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
        write_json(self.out / "config.json", config(metadata, labels), indent=1)

    def _check_crowds(self, truth: TrueMap, image: str) -> None:
        """InputError if a crowd would become an instance, or an instance a crowd."""
        metadata = self.folder.metadata
        for segment in truth.segments:
            name = metadata.categories[segment.category]
            if not metadata.is_thing(segment.category) or segment.iscrowd == is_group(name):
                continue
            what = "a crowd" if segment.iscrowd else "a single instance"
            raise InputError(
                f"image {image}: {what} of {name!r}; instances of Vistas are crowds if the name of their class ends in "
                "'group', and only then: use the format coco or cityscapes"
            )
