"""Ground truth as raw Cityscapes, which the official scripts and `prepare cityscapes` read."""

from __future__ import annotations

from pathlib import Path

from seamseg.cityscapes_labels import INSTANCES_FROM
from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo
from seamseg.data.prepare.cityscapes import SPLITS
from seamseg.data.prepare.convert import Options
from seamseg.data.prepare.writer import put_photo
from seamseg.engine.ground_truth.frames import check_names, for_each, read_map
from seamseg.engine.layouts.cityscapes import VOID_LABEL, city_of, frame_name, with_label_ids
from seamseg.engine.layouts.pictures import instance_picture, label_picture, write_grey_png

_SOURCES = {ours: (kind, theirs) for theirs, (kind, ours) in SPLITS.items()}


class CityscapesGroundTruth:
    """`OUT/cityscapes/gtFine/<split>/<city>/<frame>_gtFine_{instanceIds,labelIds}.png` and the photos, `leftImg8bit/`.

    Instances are label * 1000 + number from 0 (16 bit), stuff and crowds the label alone, void is label 0. The split
    `coarse` becomes `gtCoarse/train_extra`.

    Raises
    ------
    InputError
        if the data set has a class that Cityscapes lacks
    """

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "cityscapes"
        self._classes = with_label_ids(folder.metadata, str(folder.root))

    def targets(self, split: str) -> list[Path]:
        """The folders of annotations and photos of a split"""
        kind, name = _SOURCES.get(split, ("gtFine", split))
        return [self.out / kind / name, self.out / "leftImg8bit" / name]

    def write(self, split: str, options: Options) -> None:
        """Write a split."""
        annotations, photos = self.targets(split)
        kind, link, labels = annotations.parent.name, options.link, self._classes.original_ids

        def export(image: ImageInfo) -> None:
            frame = frame_name(image.id)
            city, truth = city_of(frame), read_map(self.folder, image)
            instances = instance_picture(
                truth.ids,
                truth.segments,
                labels,
                self._classes.num_stuff,
                INSTANCES_FROM,
                1,
                VOID_LABEL,
                image.id,
            )
            pixels = label_picture(truth.ids, truth.segments, labels, VOID_LABEL)
            photo = self.folder.image_path(image.id)
            put_photo(photo, photos / city / f"{frame}_leftImg8bit{photo.suffix.lower()}", link)
            write_grey_png(annotations / city / f"{frame}_{kind}_labelIds.png", pixels)
            write_grey_png(annotations / city / f"{frame}_{kind}_instanceIds.png", instances)

        images = self.folder.split(split)
        check_names(images, frame_name)
        for_each(export, images, options, f"{split}, cityscapes")
