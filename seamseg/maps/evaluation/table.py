"""Plain-text tables of fractions in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def percent_lines(
    title: str,
    heads: Sequence[str],
    rows: Iterable[tuple[str, Sequence[float]]],
    width: int,
    column: int = 7,
) -> list[str]:
    """Format rows of a name and fractions in percent, below a head."""
    lines = [f"{title:<{width}}" + "".join(f"{head:>{column}}" for head in heads)]
    for name, values in rows:
        lines.append(f"{name:<{width}}" + "".join(f"{percent(v):>{column}}" for v in values))
    return lines


def percent(value: float) -> str:
    """Format a fraction in percent, in seven characters."""
    return f"{'-':>7}" if math.isnan(value) else f"{100 * value:>7.2f}"
