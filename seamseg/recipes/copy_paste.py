"""Copy-paste of instances of other training images (arXiv 2012.07177), see docs/how-to/recipes.md."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from seamseg.components import AugmentedImage, ImageInfo, Load, Mix, Reader, key, mix
from seamseg.panoptic_map import VOID
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class CopyPasteKeys:
    """Keys of copy-paste."""

    probability: float = key("probability of pasting instances onto an image", 0.5, minimum=0, maximum=1)


@mix("copy_paste", keys=CopyPasteKeys)
class CopyPaste(Mix):
    """Pastes random instances of another training image onto one, without blending."""

    stream = "paste"

    def __init__(self, keys: CopyPasteKeys, reader: Reader) -> None:
        super().__init__(keys, reader)
        self._probability = keys.probability
        self._sources = [i for i, image in enumerate(reader.images) if self._has_things(image)]
        if keys.probability and not self._sources:
            where = f"split {reader.split} of {reader.root}"
            raise InputError(f"[mix copy_paste]: no image of {where} has an instance of a thing")

    def _has_things(self, image: ImageInfo) -> bool:
        return any(self._is_thing(c) and not crowd for c, crowd in zip(image.cat, image.iscrowd))

    def _is_thing(self, category: int) -> bool:
        return self.metadata.num_stuff <= category != VOID

    def combine(self, image: AugmentedImage, rng: Random, load: Load) -> AugmentedImage:
        """Paste a random subset of the things of another image, from one to all, at a random place.

        Crowds are not pasted. Where the images differ in size, the other one is shifted.
        """
        if rng.random() >= self._probability or (source := load(self._sources)) is None:
            return image
        ids = range(1, len(source.cat))
        things = [i for i in ids if self._is_thing(source.cat[i]) and not source.iscrowd[i]]
        if not things:
            return image
        chosen = rng.sample(things, rng.randint(1, len(things)))
        room = [target - side for target, side in zip(image.ids.shape[1:], source.ids.shape[1:])]
        y, x = (rng.randint(min(0, most), max(0, most)) for most in room)
        return image.paste(source, chosen, y, x)
