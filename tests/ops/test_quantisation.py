"""The simulated int8 arithmetic is that of its definition, and ranges have the least error."""

import numpy as np
import pytest
import torch

from seamseg.ops.quantisation import LEVELS, FakeQuantise, Histogram, RoundedWeight
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


def test_range_drops_outliers():
    histogram = Histogram()
    histogram.add(np.random.default_rng(0).normal(size=1_000_000).astype(np.float32))
    histogram.add(np.float32([40, -40]))
    low, high = histogram.best_range()
    assert 4 < high < 25
    assert -25 < low < -4


def test_range_before_a_leaky_relu_spends_few_steps_on_negative_values():
    histogram = Histogram()
    histogram.add(np.random.default_rng(0).normal(size=100_000).astype(np.float32))
    low, high = histogram.best_range(slope=0.01)
    plain, _ = histogram.best_range()
    assert plain < 2 * low < 0
    assert high > 3


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
    place = FakeQuantise()
    place.set_range(0.0, 0.0)
    assert place(torch.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(dtype):
    """Rounded to the levels; gradients pass where values are inside of the range."""
    place = FakeQuantise()
    place.set_range(-1.0, 3.0)
    x = torch.linspace(-2, 4, 1001).to(dtype).requires_grad_()
    y = place(x)
    step = 4 / LEVELS
    zero = round(1 / step)
    unlimited = np.rint(x.detach().double().numpy() / step) + zero
    wanted = (np.clip(unlimited, 0, LEVELS) - zero) * step
    assert y.dtype == dtype
    difference = np.abs(y.detach().double().numpy() - wanted)
    # a value halfway between two levels may be rounded to either; bfloat16 has 8 bits, too
    assert difference.max() < 1.01 * step
    assert np.quantile(difference, 0.99) < (1e-6 if dtype is torch.float32 else 2**-7)
    assert len(y.detach().unique()) <= LEVELS + 1
    y.float().sum().backward()
    assert np.array_equal(x.grad.float().numpy() != 0, (unlimited >= 0) & (unlimited <= LEVELS))
    assert place(torch.zeros(1)) == 0


def test_values_are_observed_and_not_changed():
    place = FakeQuantise()
    place.histogram = Histogram()
    x = torch.randn(50)
    assert place(x) is x
    assert place.histogram.counts.sum() == 50


def test_weights():
    """Each output channel has its own 255 levels; one of zeros stays."""
    weight = (torch.randn(4, 5, 3, 3) * torch.tensor([1.0, 10, 0.01, 0])[:, None, None, None]).requires_grad_()
    rounded = RoundedWeight()(weight)
    for own, found in zip(*(w.detach().double().numpy() for w in (weight, rounded))):
        step = np.abs(own).max() / 127
        wanted = np.rint(own / step) * step if step else own
        np.testing.assert_allclose(found, wanted, atol=1e-6 * np.abs(own).max() + 1e-30)
        assert step == 0 or np.abs(found - own).max() > step / 4
    rounded.sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))
