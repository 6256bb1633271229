"""Small dataset folders, their classes and segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata


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


def listed(root: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in root.glob("lst/*.txt"))


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a dataset folder with images of given sizes in the split `train`."""

    def make(sizes: list[tuple[int, int]] | None = None, ending: str = ".png", name: str = "city") -> Path:
        root = tmp_path / name
        for part in ("img", "msk", "lst"):
            (root / part).mkdir(parents=True)
        images = []
        for k, (height, width) in enumerate(sizes or [(12, 20), (20, 12), (14, 14)]):
            pixels = np.random.RandomState(k).randint(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "img" / f"im{k}{ending}")
            ids = np.ones((height, width), np.uint8)
            ids[0] = 0
            ids[height // 2 :, width // 2 :] = 2
            ids[-2:, -3:] = 3
            Image.fromarray(ids).save(root / "msk" / f"im{k}.png")
            images.append(ImageInfo(f"im{k}", [255, 0, 2, 2], (height, width), [0, 0, 0, 1]))
        (root / "lst" / "train.txt").write_text("".join(f"{i.id}\n" for i in images))
        m = classes()
        write_metadata(
            root / "metadata.bin", Metadata(m.num_stuff, m.num_thing, m.categories, m.palette, m.original_ids, images)
        )
        return root

    return make
