"""Compare the joint histogram of two maps of 1024 x 2048 with numpy; time the panoptic quality of a pair in memory.

    python benchmarks/histogram.py
    python benchmarks/histogram.py quality --threads 1

`maps` have 80 segments, and the second is the first moved by a few pixels; `noise` changes at every pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from timing import Case, options, report

from seamseg.evaluation.panoptic_quality import PanopticQuality
from seamseg.idmaps.histogram import joint_histogram
from seamseg.panoptic_map import SegmentInfo

HEIGHT, WIDTH, SEGMENTS, CLASSES = 1024, 2048, 80, 19
Maps = tuple[np.ndarray, np.ndarray]


def maps(dtype: type) -> Maps:
    """Draw bands of stuff with discs of things over them and void lines between; return also the moved map."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    ids = 1 + y * 6 // HEIGHT
    for i in range(7, SEGMENTS + 1):
        radius = np.exp(rng.normal(3.7, 0.7))
        ids[np.hypot(y - rng.uniform(0, HEIGHT), x - rng.uniform(0, WIDTH)) < radius] = i
    moved = np.roll(ids, (3, 4), (0, 1))
    ids[::97] = 0
    return ids.astype(dtype), moved.astype(dtype)


def noise(dtype: type) -> Maps:
    """Draw independent classes."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, CLASSES, (2, HEIGHT, WIDTH)).astype(dtype)
    return first, second


def by_unique(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the pairs by sorting."""
    return np.unique(a.astype(np.int64) * (int(b.max()) + 1) + b, return_counts=True)[1]


def by_bincount(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the pairs with a table of all possible pairs."""
    counts = np.bincount((a.astype(np.int64) * (int(b.max()) + 1) + b).ravel())
    return counts[counts > 0]


def histogram(peer: Callable[[np.ndarray, np.ndarray], np.ndarray], make: Callable[[type], Maps], dtype: type) -> Case:
    """Compare the joint histogram."""
    a, b = make(dtype)
    name = f"histogram, {make.__name__}, {dtype.__name__}"
    words = "np.unique" if peer is by_unique else "np.bincount"
    return Case(name, words, lambda: joint_histogram(a, b)[1], lambda: peer(a, b))


def quality(dtype: type) -> Case:
    """Compare the counts of a class from two maps and their segments; the peer builds the histogram by np.unique."""
    a, b = maps(dtype)
    segments = [[SegmentInfo(int(i), int(i) % CLASSES) for i in np.unique(ids) if i > 0] for ids in (a, b)]

    def theirs() -> int:
        keys, counts = np.unique(a.astype(np.int64) * (int(b.max()) + 1) + b, return_counts=True)
        pairs = np.stack(np.divmod(keys, int(b.max()) + 1), 1)
        result = PanopticQuality(CLASSES)
        result.add_pairs(pairs, counts, segments[0], segments[1])
        return int(result.state_tensor().sum())

    def ours() -> int:
        result = PanopticQuality(CLASSES)
        result.add(a, segments[0], b, segments[1])
        return int(result.state_tensor().sum())

    return Case(f"panoptic quality, {dtype.__name__}", "the same with np.unique", ours, theirs)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    for make in (maps, noise):
        for dtype in (np.uint8, np.int32, np.int64):
            for peer in (by_unique, by_bincount):
                yield f"histogram {make.__name__} {dtype.__name__}", partial(histogram, peer, make, dtype)
    for dtype in (np.uint8, np.int32, np.int64):
        yield f"panoptic quality {dtype.__name__}", partial(quality, dtype)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    report(cases(), arguments)
