"""The ground truth of an image of a dataset folder as one panoptic map, and the walk over a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from seamseg.data.folder import DatasetFolder
from seamseg.data.metadata import ImageInfo
from seamseg.data.prepare.convert import Options
from seamseg.data.prepare.parallel import available_cores
from seamseg.errors import InputError
from seamseg.evaluation.matching import SegmentInfo
from seamseg.evaluation.segments import gt_segments_from_instances
from seamseg.evaluation.threads import threaded_map


@dataclass(frozen=True)
class TrueMap:
    """Segment ids of an image, `H x W` int32 (0 void), and what they are: one segment a stuff class and a crowd."""

    ids: np.ndarray
    segments: list[SegmentInfo]


def read_map(folder: DatasetFolder, image: ImageInfo) -> TrueMap:
    """The map of an image; where instances overlap, the first layer has the pixel."""
    mask = folder.read_mask(image.id)
    return TrueMap(*gt_segments_from_instances(mask, image.cat, image.iscrowd, folder.metadata.num_stuff, image.id))


def check_names(images: Sequence[ImageInfo], name_of: Callable[[str], str]) -> None:
    """InputError if two images would have one name in a format without sub-folders."""
    owners: dict[str, str] = {}
    for image in images:
        owner = owners.setdefault(name_of(image.id), image.id)
        if owner != image.id:
            raise InputError(f"images {owner!r} and {image.id!r} would both be called {name_of(image.id)!r}")


def for_each(function: Callable[[ImageInfo], None], images: Sequence[ImageInfo], options: Options, desc: str) -> None:
    """Call a function on all images, in threads, and show how far it is."""
    done: Iterable[None] = threaded_map(function, images, options.workers or available_cores())
    for _ in options.progress(done, len(images), desc):
        pass
