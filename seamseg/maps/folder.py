"""The dataset folder on disk: `img/`, `msk/`, `lst/`, `coco/`, `metadata.bin` (docs/contract.md, section 1).

Custom heads may read further folders (docs/how-to/extend.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np

from seamseg.maps.formats.metadata import ImageInfo, Metadata, read_metadata
from seamseg.maps.images import open_mask
from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.files import join_inside, listed_names, nearest_path, read_bytes

IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg")
_OTHER_CASES = sorted(
    {"".join(letters) for end in IMAGE_EXTENSIONS for letters in product(*zip(end, end.upper()))} - {*IMAGE_EXTENSIONS}
)
MAP_ENDINGS = (".png", ".npy")


def void_warning(share: float) -> str | None:
    """Return a warning if more than half of the pixels are void, a share from 0 to 1; None otherwise."""
    if share <= 0.5:
        return None
    return (
        f"{share:.0%} of the pixels are void, which losses and scores ignore: masks may spread over them; if they are "
        "background, prepare the data set with a stuff class `background`"
    )


def find_metadata(root: str | Path) -> Path:
    """Return the path of the `metadata.bin` of a data set; InputError if there is none."""
    root = Path(root)
    if root.is_file():
        raise InputError(f"{root}: a file, not a data set folder; [dataloader] reader names what reads other formats")
    if not root.is_dir():
        how = nearest_path(root) or "; see `seamseg prepare --help` for how to make one"
        raise InputError(f"{root}: no such data set folder{how}")
    path = root / "metadata.bin"
    if path.exists():
        return path
    if (root / "leftImg8bit").is_dir():
        raise InputError(
            f"{root}: raw Cityscapes, not a data set folder; convert it: seamseg prepare cityscapes {root} OUT"
        )
    raise InputError(
        f"{root}: not a data set folder: it has no metadata.bin; see `seamseg prepare --help` for how to make one"
    )


@dataclass(frozen=True)
class ReadMap:
    """Ground truth of a head or metric that is read from a data set: one map an image, of the size of its mask.

    The maps are float32, in which integers are exact up to 2^24. They are scaled, cropped and flipped together
    with the image. Pixels without ground truth are those with the stored value `void` or NaN, and all of an image
    without a file; where `resize` is bilinear, also those between one of these and others.

    Attributes
    ----------
    folder : folder of the data set with the files, `DATA/FOLDER/ID.png` (8 or 16 bits) or `ID.npy`
    channels : number of channels
    factor, offset : values are `stored * factor + offset`, in the units of the head
    void : stored value of pixels without ground truth; None if each pixel has some
    fill : value of pixels without ground truth in a batch
    optional : whether images may lack a file; otherwise they count as unreadable
    resize : nearest, of the same pixels as the mask, or bilinear
    mirror : factor of each channel in a mirrored image, -1 for the horizontal part of a vector; None for no change
    scale : what enlarging an image does to the values: none, multiply (lengths, in pixels of the network's input) or
        divide (distances from the camera, relative to an input of `[dataloader] shortest_size`). Predictions are
        converted back to the units of the files, see :class:`seamseg.maps.predictions.MapFormat`

    Raises
    ------
    ValueError
        if a value is none of these, or `mirror` has another length
    """

    folder: str
    channels: int = 1
    factor: float = 1.0
    offset: float = 0.0
    void: float | None = 0
    fill: float = 0.0
    optional: bool = False
    resize: str = "nearest"
    mirror: tuple[float, ...] | None = None
    scale: str = "none"

    def __post_init__(self) -> None:
        allowed = {"resize": ("nearest", "bilinear"), "scale": ("none", "multiply", "divide")}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"ReadMap: {name} must be one of {values}, not {getattr(self, name)!r}")
        if self.channels < 1 or (self.mirror is not None and len(self.mirror) != self.channels):
            raise ValueError(f"ReadMap: mirror needs a factor for each of {self.channels} channels, got {self.mirror}")


class DatasetFolder:
    """A data set in the folder format; `root` holds `metadata.bin`. InputError if that is missing or invalid."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.metadata: Metadata = read_metadata(find_metadata(self.root))

    @property
    def splits(self) -> list[str]:
        """Names of the splits that have a list in `lst/`."""
        return sorted(p.stem for p in (self.root / "lst").glob("[!.]*.txt"))

    @cached_property
    def _by_id(self) -> dict[str, ImageInfo]:
        return {image.id: image for image in self.metadata.images}

    def info(self, image_id: str) -> ImageInfo:
        """Return the metadata of an image; InputError if there is none."""
        if image_id not in self._by_id:
            raise InputError(f"{self.root / 'metadata.bin'}: no image {image_id!r}")
        return self._by_id[image_id]

    def split(self, name: str) -> list[ImageInfo]:
        """Return the images of a split, in the order of its list.

        InputError if the list is missing or empty, or has a duplicate image or one that is not in the metadata.
        """
        path = self.root / "lst" / f"{name}.txt"
        if not path.is_file():
            known = f"it has: {', '.join(self.splits)}" if self.splits else "its lst/ has no list"
            keys = "[dataloader] train_set and val_set name the splits of a configuration"
            raise InputError(f"{path}: the data set has no split {name!r}; {known}; {keys}")
        ids = listed_names(read_bytes(path, what := "list of images"), path, what)
        if not ids:
            raise InputError(f"0 images found in {path}: the list is empty")
        unknown = [i for i in ids if i not in self._by_id]
        if unknown:
            raise InputError(
                f"{path}: {len(unknown)} of {len(ids)} images are not in metadata.bin, the first is {unknown[0]!r}; "
                "prepare the data set again"
            )
        twice = next((i for i, count in Counter(ids).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"{path}: image {twice!r} is listed twice")
        return [self._by_id[i] for i in ids]

    def image_path(self, image_id: str) -> Path:
        """Return the path of an image, ignoring the case of its extension; InputError if there is none."""
        stem = join_inside(self.root / "img", image_id)
        for extension in (*IMAGE_EXTENSIONS, *_OTHER_CASES):  # a search of the folder for each image would take long
            path = stem.with_name(stem.name + extension)
            if path.is_file():
                return path
        raise InputError(f"{stem}: no image file of {image_id!r}; expected one of {', '.join(IMAGE_EXTENSIONS)}")

    def mask_paths(self, image_id: str) -> list[Path]:
        """Return the paths of the layers of a mask, the base first; InputError if there is none."""
        base = join_inside(self.root / "msk", f"{image_id}.png")
        if not base.is_file():
            raise InputError(f"{base}: no mask of image {image_id!r}")
        layers = [base]
        while (layer := base.with_name(f"{base.name}.{len(layers)}")).is_file():
            layers.append(layer)
        return layers

    def read_mask(self, image_id: str) -> np.ndarray:
        """Read the instance ids of an image, `L x H x W` int32, 0 void.

        InputError if a layer is missing, unreadable, of another size than in the metadata, or has an id not in `cat`.
        """
        info = self.info(image_id)
        layers = []
        for path in self.mask_paths(image_id):
            layer = open_mask(path)
            if layer.shape != info.size:
                raise UnreadableImage(
                    f"{path}: the mask is {layer.shape[1]} x {layer.shape[0]} pixels (width x height), "
                    f"but metadata.bin has {info.size[1]} x {info.size[0]}; prepare the data set again"
                )
            highest = int(layer.max())
            if highest >= len(info.cat):
                raise InputError(
                    f"{path}: the mask has instance id {highest}, but metadata.bin lists classes for ids 0 to "
                    f"{len(info.cat) - 1} of this image; prepare the data set again"
                )
            layers.append(layer)
        return layers[0][None] if len(layers) == 1 else np.stack(layers)
