"""Training images that are combined with others of the data set, and what is combined.

Each section `[mix NAME]` adds one, a component (docs/how-to/extend_data.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from seamseg.config.components import Component
from seamseg.data.crops import read_only
from seamseg.data.maps import MapValues
from seamseg.data.reader import Reader
from seamseg.panoptic_map import VOID
from seamseg.utils.component_errors import instance_of, named_errors
from seamseg.utils.errors import InputError, SeamsegError

MIRRORED = [0, 3, 2, 1]
"""The order of top, left, bottom and right after a flip."""


class AugmentedImage(NamedTuple):
    """An image and its targets after scaling and cropping, before colour jitter, flip and normalisation.

    Attributes
    ----------
    pixels : `H x W x 3` uint8
    ids : `L x H x W` instance ids without gaps in the narrowest type, 0 void
    cat, iscrowd : class, int64, and crowd flag, uint8, by id
    cut : bool `n x 4` by id: whether its image continues beyond the top, left, bottom and right border of the crop
    maps : ground truth of custom heads by name
    """

    pixels: np.ndarray
    ids: np.ndarray
    cat: np.ndarray
    iscrowd: np.ndarray
    cut: np.ndarray
    maps: Mapping[str, MapValues] = MappingProxyType({})

    def mirrored(self) -> AugmentedImage:
        """Return the image and its targets mirrored left-right."""
        maps = {name: values.mirrored() for name, values in self.maps.items()}
        return self._replace(pixels=self.pixels[:, ::-1], ids=self.ids[..., ::-1], cut=self.cut[:, MIRRORED], maps=maps)

    def read_only(self) -> AugmentedImage:
        """Return the same arrays as read-only ones."""
        maps = {name: of._replace(values=read_only(of.values)) for name, of in self.maps.items()}
        pixels, ids, cat, iscrowd, cut = map(read_only, (self.pixels, self.ids, self.cat, self.iscrowd, self.cut))
        return AugmentedImage(pixels, ids, cat, iscrowd, cut, maps)

    def paste(self, source: AugmentedImage, chosen: Sequence[int], y: int = 0, x: int = 0) -> AugmentedImage:
        """Return this image with segments of another one over it: their pixels, ids, classes, crowd flags and maps.

        What lies outside is cut off, and segments below vanish where they are covered. Pasted ones keep which borders
        cut them off, those of their own crop or of this image. The first of segments in several layers counts.

        Parameters
        ----------
        source : another image, of any size
        chosen : ids of the source; 0 pastes its void pixels, too
        y, x : place of the top left pixel of the source; negative to cut it off
        """
        places = [_overlap(*side) for side in zip(self.ids.shape[1:], source.ids.shape[1:], (y, x))]
        here, there = ((slice(None), *pair) for pair in zip(*places))
        segments = [i for i in chosen if i > 0]
        new_id = np.zeros(len(source.cat), np.int32)
        new_id[segments] = np.arange(len(segments)) + len(self.cat)
        below = source.ids[there]
        pasted = new_id[below[0]]
        for layer in below[1:]:
            pasted = np.where(pasted > 0, pasted, new_id[layer])
        covered = pasted > 0
        if 0 in chosen:
            covered |= ~below.any(0)

        ids = self.ids.astype(np.uint8 if len(self.cat) + len(segments) <= 256 else np.int32)
        ids[here][:, covered] = 0
        ids[0][here[1:]][covered] = pasted[covered]
        pixels = self.pixels.copy()
        pixels[here[1:]][covered] = source.pixels[there[1:]][covered]
        maps = {name: of._replace(values=of.values.copy()) for name, of in self.maps.items()}
        for name, of in maps.items():
            of.values[here][:, covered] = source.maps[name].values[there][:, covered]
        ends = [place[1].stop < side for place, side in zip(places, source.ids.shape[1:])]
        beyond = [*(place[1].start > 0 for place in places), *ends]
        return AugmentedImage(
            pixels,
            ids,
            np.concatenate((self.cat, source.cat[segments])),
            np.concatenate((self.iscrowd, source.iscrowd[segments])),
            np.concatenate((self.cut, source.cut[segments] | beyond)),
            maps,
        )


def _overlap(target: int, source: int, shift: int) -> tuple[slice, slice]:
    """Return the parts of a side of both images that lie over each other, with the source at a place."""
    first = max(shift, 0)
    last = max(min(shift + source, target), first)
    return slice(first, last), slice(first - shift, last - shift)


def compact_ids(
    ids: np.ndarray, cat: Sequence[int] | np.ndarray, iscrowd: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renumber instance ids to close the gaps of ids without pixels; id 0 stays.

    Parameters
    ----------
    ids : integer array, every value below `len(cat)`
    cat, iscrowd : class and crowd flag by id

    Returns
    -------
    ids of the same type, cat int64, iscrowd uint8
    """
    counts = torch.bincount(torch.from_numpy(np.ascontiguousarray(ids)).flatten(), minlength=len(cat)).numpy()
    present = counts > 0
    present[0] = True
    if not present.all():
        new_id = (np.cumsum(present) - 1).astype(ids.dtype)
        ids = new_id.take(ids)
    return ids, np.asarray(cat, np.int64)[present], np.asarray(iscrowd, np.uint8)[present]


class Load(Protocol):
    """Loads another image of the data set, drawn at random, augmented and mirrored like any."""

    def __call__(self, among: Sequence[int] | None = None) -> AugmentedImage | None:
        """Return an image `among` these indices, or of all; None if there is no other one that can be read."""


class Mix(ABC):
    """Combines a training image with others; derive from it, and register it with :func:`seamseg.components.mix`.

    Parameters
    ----------
    keys : values of the section `[mix NAME]`
    reader : reader of the data set, with `images` and `metadata`; raise InputError in `__init__` if they do not suit

    Attributes
    ----------
    stream : prefix of the seed of its random numbers; derived from its name if empty
    """

    name = "custom"
    stream = ""

    def __init__(self, keys: Any, reader: Reader) -> None:
        self.keys = keys
        self.metadata = reader.metadata

    @abstractmethod
    def combine(self, image: AugmentedImage, rng: Random, load: Load) -> AugmentedImage:
        """Return an image with its targets, combined with others that `load` loads; it may have another size.

        Take random numbers from `rng` only: it is seeded by the seed of the training, the epoch and the image. Ids
        without pixels are removed afterwards. The arrays of `image` are read-only.
        """


MakeMix = Callable[[Reader], Mix]
"""Makes the mix of a data set."""


def make_mix(component: Component, keys: Any, reader: Reader) -> Mix:
    """Make the mix of a section `[mix NAME]`.

    Raises
    ------
    InputError
        if it fails, or does not suit the data set
    """
    mix = instance_of(Mix, component.build(keys, reader), component.section)  # type: ignore[type-abstract]
    mix.name = component.name
    return mix


def combine(mix: Mix, image: AugmentedImage, rng: Random, load: Load) -> AugmentedImage:
    """Combine an image with others.

    Raises
    ------
    SeamsegError
        naming the mix, if it fails or what it returns does not fit together
    """
    unreadable: list[InputError] = []

    def load_other(among: Sequence[int] | None = None) -> AugmentedImage | None:
        try:
            return load(among)
        except InputError as error:
            unreadable.append(error)
            raise

    given = image.read_only()
    with named_errors(f"mix {mix.name}", type(mix).__module__):
        try:
            found = mix.combine(given, rng, load_other)
        except InputError as error:
            if error in unreadable:
                raise
            raise SeamsegError(f"mix {mix.name}: {error}") from error
        if found is given:
            return image
        problem = _problem(found, image, mix.metadata.num_stuff + mix.metadata.num_thing)
    if problem is not None:
        raise SeamsegError(f"mix {mix.name}: {problem}")
    narrow = np.require(found.ids, np.uint8 if len(found.cat) <= 256 else np.int32, ["C", "W"])
    ids, kept, iscrowd = compact_ids(narrow, range(len(found.cat)), found.iscrowd)
    pixels, cat = np.require(found.pixels, None, ["C", "W"]), np.asarray(found.cat, np.int64)[kept]
    maps = {name: of._replace(values=np.require(of.values, None, "W")) for name, of in found.maps.items()}
    return AugmentedImage(pixels, ids, cat, iscrowd, found.cut[kept], maps)


def _problem(found: Any, image: AugmentedImage, classes: int) -> str | None:
    """Return what is wrong with the result of a mix; None if nothing is."""
    if not isinstance(found, AugmentedImage):
        return f"must return an AugmentedImage, returned {type(found).__name__}"
    pixels, ids, cut, count = found.pixels, found.ids, found.cut, len(found.cat)
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or not ids.size:
        return f"the ids are {ids.dtype} of {ids.shape}, expected integers of (L, H, W)"
    if found.maps.keys() != image.maps.keys():
        return f"the maps must be {', '.join(image.maps) or 'none'}, returned {', '.join(found.maps) or 'none'}"
    for name, array, dtype, shape in (
        ("pixels", pixels, np.uint8, (*ids.shape[1:], 3)),
        ("cut", cut, np.bool_, (count, 4)),
        *((f"map {name}", x.values, np.float32, (x.spec.channels, *ids.shape[1:])) for name, x in found.maps.items()),
    ):
        if array.shape != shape or array.dtype != dtype:
            return f"{name} must be {np.dtype(dtype)} of {shape}, returned {array.dtype} of {array.shape}"
    if len(found.iscrowd) != count or int(ids.min()) < 0 or int(ids.max()) >= count:
        given = f"{count} classes and {len(found.iscrowd)} crowd flags"
        return f"ids {ids.min()} to {ids.max()} need a class and a crowd flag each, returned {given}"
    return _problem_of_ids(np.asarray(found.cat), np.asarray(found.iscrowd), classes)


def _problem_of_ids(cat: np.ndarray, iscrowd: np.ndarray, classes: int) -> str | None:
    for name, values in (("cat", cat), ("iscrowd", iscrowd)):
        if values.ndim != 1 or values.dtype.kind not in "biu":
            return f"{name} must be integers of ({len(cat)},), returned {values.dtype} of {values.shape}"
    if not np.isin(iscrowd, (0, 1)).all():
        return f"iscrowd must be 0 or 1, returned {iscrowd[~np.isin(iscrowd, (0, 1))][0]}"
    wrong = [int(c) for c in cat if not 0 <= c < classes and c != VOID]
    if wrong or cat[0] != VOID:
        wanted = f"class {VOID} for id 0, and classes below {classes} or {VOID} for others"
        return f"cat must have {wanted}, returned {wrong[0] if wrong else cat[0]}"
    return None
