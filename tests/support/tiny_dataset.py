"""The classes of the tiny data sets of these tests, and the segments of a dataset folder."""

from pathlib import Path

import numpy as np

from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import Metadata


def classes() -> Metadata:
    return Metadata(2, 1, ["road", "sky", "car"], [(128, 64, 128), (70, 130, 180), (0, 0, 142)], [7, 23, 26], [])


def segment_masks(root: Path) -> dict[str, set[tuple[str, int, bytes]]]:
    """Return class, crowd flag and pixels of each segment in the base layer, by image."""
    folder = DatasetFolder(root)
    found = {}
    for image in folder.metadata.images:
        mask, names = folder.read_mask(image.id)[0], folder.metadata.categories
        ids = np.unique(mask[mask > 0]).tolist()
        found[image.id] = {(names[image.cat[i]], image.iscrowd[i], (mask == i).tobytes()) for i in ids}
    return found
