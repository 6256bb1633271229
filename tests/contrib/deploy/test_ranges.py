"""Ranges of int8 have the least error."""

import numpy as np
import pytest

from seamseg.contrib.deploy.quantize import Histogram
from seamseg.utils.errors import SeamsegError


def test_histogram_of_growing_values():
    values = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    values *= np.repeat([0.01, 1, 30, 5], 1000).astype(np.float32)
    parts = Histogram()
    for part in np.split(values, 4):
        parts.add(part)
    assert (parts.low, parts.high) == (values.min(), values.max())
    assert parts.limit > 16 * np.abs(values[:1000]).max()  # the interval was doubled
    # the same bins as if the last interval had been the first; float32 moves values at the edges of bins
    wanted, _ = np.histogram(values, len(parts.counts), (-parts.limit, parts.limit))
    assert parts.counts.sum() == 4000
    assert np.abs(np.cumsum(parts.counts - wanted)).max() <= 5
    with pytest.raises(SeamsegError, match="not finite"):
        parts.add(np.float32([1, np.nan]))


def rounding_error(values, low, high, slope):
    """Mean square error of the activated values in 256 levels from low to high, one of which is 0."""
    step = (high - low) / 255
    zero = np.rint(-low / step)
    levels = (np.arange(256) - zero) * step
    rounded = levels[np.clip(np.rint(values / step) + zero, 0, 255).astype(int)]
    both = [np.where(x < 0, slope * x, x) for x in (values, rounded)]
    return np.mean((both[0] - both[1]) ** 2)


@pytest.mark.parametrize("slope", [None, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_ends_of_a_range_have_the_least_error(slope, seed):
    """Each among those tried, given the other one, which is chosen after it."""
    values = np.float32([*np.random.default_rng(seed).normal(size=100_000), 12 + seed, -15])
    histogram = Histogram()
    histogram.add(values)
    low, high = histogram.best_range(slope)
    parts = np.linspace(0.04, 1, 25)
    assert np.abs(parts * values.min() - low).min() < 1e-6
    assert np.abs(parts * values.max() - high).min() < 1e-6
    slope = 1.0 if slope is None else slope
    least = [rounding_error(values, values.min() * part, high, slope) for part in parts]
    found = rounding_error(values, low, high, slope)
    assert found == pytest.approx(min(least), rel=0.02)
    assert found < 0.8 * rounding_error(values, values.min(), values.max(), slope)


def test_ranges_of_few_values():
    histogram = Histogram()
    histogram.add(np.zeros((0, 3), np.float32))
    assert histogram.best_range() == (0, 0)
    histogram.add(np.zeros(4, np.float32))
    assert histogram.best_range() == (0, 0)
    histogram.add(np.float32([1.0, 1.0]))
    assert histogram.best_range() == pytest.approx((0, 1), abs=0.01)
    histogram = Histogram()
    histogram.add(np.float32([1.0, 1.0]))
    assert histogram.best_range() == pytest.approx((0, 1), abs=0.01)
