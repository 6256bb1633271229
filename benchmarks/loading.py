"""Compare loading of training images, by option, with plain loading: Pillow, then floats.

    python benchmarks/loading.py --threads 1

Items are made in this process, on one core: decode image and mask, scale, flip, normalise, targets. The images are made
in a temporary folder: JPEGs of 2048 x 1024 pixels and masks of 60 ids. The peer does what the original does: the whole
image and its mask through Pillow, `numpy.unique` to drop vanished ids, normalisation in float32; its boxes come from
our operator. Figures are for all images together, `images/s` below the table for one image.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from timing import Case, options, report
from torch.utils.data import Dataset

from seamseg.config import default_config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.input_size import InputSize
from seamseg.data.reader import FolderReader
from seamseg.data.transforms import TrainTransform
from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.ops.labels import extract_boxes

IMAGES = 6
SCALE = (0.8, 1.0)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "crop 512 x 1024": {"crop_size": (512, 1024)},
    "crop, device, fast_decode": {"crop_size": (512, 1024), "on_device": True, "fast_decode": True},
}


def photo(size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Draw structure of all scales and a little grain: the JPEG is about as long as that of a street scene."""
    height, width = size
    total = np.zeros((height, width, 3), np.float32)
    for cells in (4, 16, 64, 256):
        coarse = rng.integers(0, 256, (cells // 2, cells, 3), dtype=np.uint8)
        total += np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.float32) / 4
    return Image.fromarray(np.clip(total + rng.normal(0, 3, total.shape), 0, 255).astype(np.uint8))


def make_folder(root: Path, size: tuple[int, int]) -> Path:
    """Write a dataset folder of JPEGs like photographs."""
    rng = np.random.default_rng(0)
    for part in ("img", "msk", "lst"):
        (root / part).mkdir(parents=True)
    infos = []
    for number in range(IMAGES):
        photo(size, rng).save(root / "img" / f"{number}.jpg", quality=92)
        ids = np.arange(32)[:, None] // 4 + np.zeros((32, 64), np.int64)
        for instance in range(8, 60):
            y, x = rng.integers(0, 30), rng.integers(0, 62)
            ids[y : y + 2, x : x + 2] = instance
        mask = np.kron(ids, np.ones((size[0] // 32, size[1] // 64), np.uint8)).astype(np.uint8)
        Image.fromarray(mask).save(root / "msk" / f"{number}.png")
        infos.append(ImageInfo(str(number), [VOID, *(i % 19 for i in range(59))], size, [0] * 60))
    (root / "lst" / "train.txt").write_text("\n".join(info.id for info in infos))
    names, palette = [f"class {i}" for i in range(19)], [(i, i, i) for i in range(19)]
    write_metadata(root / "metadata.bin", Metadata(11, 8, names, palette, list(range(19)), infos))
    return root


class PlainDataset(Dataset):
    """The peer: one item the plain way."""

    def __init__(self, data: PanopticDataset, transform: TrainTransform) -> None:
        self.data = data
        assert isinstance(data.reader, FolderReader)
        self.folder = data.reader.folder
        self.transform = transform
        self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))

    def __getitem__(self, index: int) -> dict[str, Any]:
        info, folder = self.data.images[index], self.folder
        rng = Random(f"0/0/{index}")
        flip = rng.random() < 0.5
        shortest = int(self.transform.options.shortest_size * rng.uniform(*SCALE))
        image = Image.open(folder.image_path(info.id)).convert("RGB")
        layers: list[Image.Image] = [Image.open(path) for path in folder.mask_paths(info.id)]
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            layers = [layer.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for layer in layers]
        size = InputSize(shortest, self.transform.options.longest_max_size).scaled(image.size)
        image = image.resize(size, Image.Resampling.BILINEAR)
        mask = np.stack([np.array(layer.resize(size, Image.Resampling.NEAREST), np.int64) for layer in layers])
        present = np.union1d([0], np.unique(mask))
        new = np.zeros(len(info.cat), np.int64)
        new[present] = np.arange(len(present))
        ids = torch.from_numpy(new[mask])
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        return {
            "img": (pixels - self.mean) / self.std,
            "msk": ids,
            "cat": torch.from_numpy(np.array(info.cat)[present]),
            "iscrowd": torch.from_numpy(np.array(info.iscrowd, np.uint8)[present]),
            "bbx": extract_boxes(ids, len(present)),
        }


def item_case(name: str, root: Path) -> Case:
    """Compare the loading of items with an option; results only where both sides make the same."""
    option = OPTIONS[name]
    loading = replace(
        default_config().dataloader,
        shortest_size=1024,
        longest_max_size=2048,
        rgb_mean=MEAN,
        rgb_std=STD,
        random_scale=SCALE,
        crop_size=option.get("crop_size"),
        device_transforms=option.get("on_device", False),
    )
    transform = TrainTransform(loading)
    ours = PanopticDataset(root, "train", transform, fast_decode=option.get("fast_decode", False))
    plain = PlainDataset(ours, transform)

    def run(data: Dataset) -> object:
        items = [data[i] for i in range(IMAGES)]
        return items[0]["img"] if not option else None

    return Case(name, "Pillow, then float32", lambda: run(ours), lambda: run(plain))


def main() -> None:
    """Run the command line."""
    parser = options(__doc__)
    parser.add_argument("--size", type=int, default=1024, help="height of the images (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = make_folder(Path(folder) / "data", (arguments.size, 2 * arguments.size))
        rows = report(((name, partial(item_case, name, root)) for name in OPTIONS), arguments)
    print()
    for row in rows:
        print(f"{row.case:<50}{IMAGES / row.ours_ms * 1e3:>8.1f} images/s, peer {IMAGES / row.peer_ms * 1e3:.1f}")


if __name__ == "__main__":
    main()
