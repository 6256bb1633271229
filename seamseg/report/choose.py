"""Which images get a picture on the page when there are too many."""

from __future__ import annotations

from collections.abc import Sequence

from seamseg.report.statistics import ImageEntry


def change(image: ImageEntry, other: ImageEntry) -> float | None:
    """PQ of an image in the first run minus that in the second; None if one of them has none."""
    return None if image.pq is None or other.pq is None else image.pq - other.pq


def choose(values: Sequence[float | None], most: int) -> list[int]:
    """Positions of the lowest and the highest values, half and half, in their order; all if there are few.

    Positions without a value come in last, when there is room.

    Parameters
    ----------
    values : PQ of the images, or the change of it
    most : positions to return at most
    """
    if len(values) <= most:
        return list(range(len(values)))
    known = sorted((value, k) for k, value in enumerate(values) if value is not None)
    order = [k for _, k in known]
    if len(order) <= most:
        unknown = [k for k, value in enumerate(values) if value is None]
        return sorted([*order, *unknown[: most - len(order)]])
    low = (most + 1) // 2
    return sorted([*order[:low], *order[len(order) - (most - low) :]])
