"""Augmentation by instances: scale-uniform crops around one, and copy-paste from another image.

See docs/how-to/recipes.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from seamseg.data.transforms import AugmentedImage, Focus, compact_ids
from seamseg.panoptic_map import VOID
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class InstanceOptions:
    """Augmentation of training images by their instances.

    Attributes
    ----------
    scale_uniform : smallest and largest length, in pixels of the network input, of the longest side of the instance
        around which an image is cropped, see :func:`draw_focus`; None for ordinary crops
    copy_paste : probability that instances of another image are pasted onto an image, see :func:`paste_instances`

    Raises
    ------
    InputError
        if a value is out of range
    """

    scale_uniform: tuple[float, float] | None = None
    copy_paste: float = 0

    def __post_init__(self) -> None:
        sizes = self.scale_uniform
        if sizes is not None and not 0 < sizes[0] <= sizes[1]:
            raise InputError(
                f"instance_scale_uniform must be two positive lengths, the smaller one first, got {tuple(sizes)}"
            )
        if not 0 <= self.copy_paste <= 1:
            raise InputError(f"copy_paste must be 0 to 1, got {self.copy_paste}")


def draw_focus(
    mask: np.ndarray,
    cat: Sequence[int],
    iscrowd: Sequence[int],
    num_stuff: int,
    sizes: tuple[float, float],
    rng: Random,
    category: int | None = None,
) -> Focus | None:
    """Draw what a crop is to contain: a class of the image uniformly, then one of its segments uniformly.

    This is the sampling by instance scales of arXiv 2012.07717. The longest side of the box of a thing gets a length
    that is uniform in octaves, as the levels of a feature pyramid are. Stuff has no length of its own; only a random
    pixel of it is in the crop.

    Parameters
    ----------
    mask : `L x H x W` ids
    cat, iscrowd : class and crowd flag by id; crowds and void are not drawn
    num_stuff : stuff classes, which come before the things
    sizes : smallest and largest length in pixels of the network input
    category : class to take instead of a random one, if the image has it

    Returns
    -------
    None if there is nothing to draw
    """
    ids: dict[int, list[int]] = {}
    for i, (c, crowd) in enumerate(zip(cat, iscrowd)):
        if c != VOID and not crowd:
            ids.setdefault(int(c), []).append(i)
    if not ids:
        return None
    if category is None or category not in ids:
        category = rng.choice(sorted(ids))
    inside = (mask == rng.choice(ids[category])).any(0)
    pixels = np.flatnonzero(inside)
    if len(pixels) == 0:  # metadata may list ids that another layer hides
        return None
    y, x = divmod(int(pixels[rng.randrange(len(pixels))]), mask.shape[-1])
    if category < num_stuff:
        return Focus((y, x, y + 1, x + 1), (y, x), None)
    rows, columns = (np.flatnonzero(inside.any(axis)) for axis in (1, 0))
    box = int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1
    length = math.exp(rng.uniform(math.log(sizes[0]), math.log(sizes[1])))
    return Focus(box, (y, x), length / max(box[2] - box[0], box[3] - box[1]))


def paste_instances(target: AugmentedImage, source: AugmentedImage, num_stuff: int, rng: Random) -> AugmentedImage:
    """Paste a random subset of the things of an image onto another one, without blending (arXiv 2012.07177).

    The number of pasted instances is uniform from 1 to all. Crowds are not pasted. Where the images differ in size, the
    source is shifted at random, and what lies outside the target is cut off. Instances that are covered completely
    vanish. Pasted ones keep which borders cut them off, those of their own crop or of the target. Maps are pasted like
    pixels.

    Parameters
    ----------
    target, source : augmented images, not modified
    num_stuff : stuff classes, which come before the things

    Returns
    -------
    `target` itself, if there is nothing to paste
    """
    things = [i for i in range(1, len(source.cat)) if source.cat[i] >= num_stuff and not source.iscrowd[i]]
    things = [i for i in things if source.cat[i] != VOID]
    if not things:
        return target
    chosen = rng.sample(things, rng.randint(1, len(things)))
    new_id = np.zeros(len(source.cat), np.int32)
    new_id[chosen] = np.arange(len(chosen)) + len(target.cat)

    here, there = zip(*(_overlap(a, b, rng) for a, b in zip(target.ids.shape[1:], source.ids.shape[1:])))
    layers = new_id[source.ids[:, there[0], there[1]]]
    pasted = layers[0]
    for layer in layers[1:]:
        pasted = np.where(pasted > 0, pasted, layer)
    covered = pasted > 0

    count = len(target.cat) + len(chosen)
    ids = target.ids.astype(np.uint8 if count <= 256 else np.int32)
    ids[:, here[0], here[1]][:, covered] = 0
    ids[0, here[0], here[1]][covered] = pasted[covered]
    pixels = target.pixels.copy()
    pixels[here][covered] = source.pixels[there][covered]
    cat = [*target.cat.tolist(), *source.cat[chosen].tolist()]
    iscrowd = [*target.iscrowd.tolist(), *[0] * len(chosen)]
    beyond = [there[0].start > 0, there[1].start > 0, *(p.stop < n for p, n in zip(there, source.ids.shape[1:]))]
    cut = np.concatenate((target.cut, source.cut[chosen] | beyond))
    maps = {name: x._replace(values=x.values.copy()) for name, x in target.maps.items()}
    for name, x in maps.items():
        x.values[:, here[0], here[1]][:, covered] = source.maps[name].values[:, there[0], there[1]][:, covered]
    ids, kept, crowds = compact_ids(ids, range(count), iscrowd)
    return AugmentedImage(pixels, ids, np.asarray(cat, np.int64)[kept], crowds, cut[kept], maps)


def _overlap(target: int, source: int, rng: Random) -> tuple[slice, slice]:
    """Return the parts of a side of both images that lie over each other, with the source at a random place."""
    shift = rng.randint(min(0, target - source), max(0, target - source))
    first, last = max(shift, 0), min(shift + source, target)
    return slice(first, last), slice(first - shift, last - shift)
