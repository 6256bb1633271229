"""Small files of raw data sets; small dataset folders, and summaries of them."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.label_studio import encode_runs
from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata

CLASS_LIST = """
[road]
id = 0
kind = stuff
color = 1 2 3
[car]
id = 7
kind = thing
[sky]
id = 3
kind = stuff
[void]
ids = 255, 9
"""


def picture(path: Path, values: Any, dtype: type = np.uint8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=dtype)).save(path)
    return path


def photo(path: Path, size: tuple[int, int] = (8, 12), shade: int = 0) -> Path:
    return picture(path, np.full((*size, 3), shade))


def panoptic_png(path: Path, ids: Any) -> Path:
    """Write ids as `R + 256 G + 65536 B`."""
    ids = np.asarray(ids)
    return picture(path, np.stack([ids & 255, ids >> 8 & 255, ids >> 16 & 255], axis=-1))


def brush(mask: np.ndarray) -> list[int]:
    """Encode a mask, `H x W` bool, as the bytes of a brush region of Label Studio."""
    flat = np.asarray(mask, bool).ravel()
    edges = np.flatnonzero(np.diff(flat, prepend=False, append=False))
    return encode_runs(edges[::2], edges[1::2], flat.size)


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def zip_of(folder: Path, archive: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(archive, "w", method) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder).as_posix())
    return archive


def segments(root: Path, image_id: str) -> list[tuple[str, int, int]]:
    """Return `(class, crowd flag, pixels)` of each instance of an image, sorted."""
    folder = DatasetFolder(root)
    info, mask = folder.info(image_id), folder.read_mask(image_id)
    counts = np.bincount(mask.ravel(), minlength=len(info.cat))
    return sorted(
        (folder.metadata.categories[c], crowd, int(n))
        for c, crowd, n in zip(info.cat[1:], info.iscrowd[1:], counts[1:].tolist())
    )


def tree(root: Path) -> dict[str, bytes]:
    """Return the content of every file by path, without the journal of a conversion, which depends on the source."""
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and p.parent.name != ".prepare")
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


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
