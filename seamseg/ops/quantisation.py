"""Simulation of int8 arithmetic in float32, for training: values are rounded to those that 8 bits represent.

Activations have 256 levels, a scale and a zero point a tensor; weights 255 symmetric ones, a scale an output channel.
Gradients pass the rounding unchanged, but for values outside of the range (Jacob et al. 2018, arXiv 1712.05877).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.utils.errors import SeamsegError

_BINS = 8192
LEVELS = 255
"""Steps of the range of activations."""
WEIGHT_LEVELS = 127
"""Largest level of weights, which are symmetric to 0."""
_FRACTIONS = np.linspace(0.04, 1.0, 25)
"""Ends of a range that are tried, as parts of the observed extremes."""


class Histogram:
    """Histogram of the values of a tensor over many runs, with the exact extremes.

    The bins cover a symmetric interval, which is doubled, and pairs of bins merged, when a value lies outside.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)
        self.limit = 0.0
        self.low, self.high = 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        """Count finite values of any shape."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not math.isfinite(low) or not math.isfinite(high):
            raise SeamsegError("int8: the network computes values that are not finite for a calibration image")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high, 1e-12)
        if not self.limit:
            self.limit = largest
        while largest > self.limit:
            self._double()
        scale = _BINS / (2 * self.limit)
        index = ((values.reshape(-1) + np.float32(self.limit)) * np.float32(scale)).astype(np.int32)
        np.clip(index, 0, _BINS - 1, out=index)
        self.counts += np.bincount(index, minlength=_BINS)

    def _double(self) -> None:
        quarter = _BINS // 4
        merged = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = np.zeros_like(self.counts)
        self.counts[quarter : quarter + _BINS // 2] = merged
        self.limit *= 2

    def best_range(self, slope: float | None = None) -> tuple[float, float]:
        """Return the ends of the range of 8-bit values with the least mean square error.

        With the `slope` of a leaky ReLU that all users of the tensor apply first, its result is what counts: most of
        the 255 steps go to positive values.
        """
        (used,) = np.nonzero(self.counts)
        if not used.size:
            return 0.0, 0.0
        values = (used + 0.5) * (2 * self.limit / _BINS) - self.limit
        values = np.clip(values, self.low, self.high)
        weights = self.counts[used] / self.counts.sum()

        def activate(x: np.ndarray) -> np.ndarray:
            return x if slope is None else np.where(x < 0, x * slope, x)

        wanted = activate(values)

        def error(low: float, high: float) -> float:
            step = max((high - low) / LEVELS, 1e-12)
            zero = np.rint(-low / step)
            got = (np.clip(np.rint(values / step) + zero, 0, LEVELS) - zero) * step
            return float(weights @ np.square(activate(got) - wanted))

        low, high = self.low, self.high
        for _ in range(2):  # one end after the other
            high = min((self.high * part for part in _FRACTIONS), key=lambda end: error(low, end))
            low = min((self.low * part for part in _FRACTIONS), key=lambda end: error(end, high))
        return low, high


class FakeQuantise(nn.Module):
    """Rounds the activations of a place in a network to 256 levels, whose range is part of its state.

    While the range is being chosen, `histogram` counts values, which pass unchanged; `slope` is for
    :meth:`Histogram.best_range`.
    """

    def __init__(self, slope: float | None = None) -> None:
        super().__init__()
        self.slope = slope
        self.histogram: Histogram | None = None
        self.scale: Tensor
        self.zero_point: Tensor
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("zero_point", torch.tensor(0, dtype=torch.int32))

    def set_range(self, low: float, high: float) -> None:
        """Set the range of the levels, which includes 0 exactly."""
        step = (high - low) / LEVELS
        step = step if step >= torch.finfo(torch.float32).tiny else 1.0
        self.scale.fill_(step)
        self.zero_point.fill_(round(-low / step))

    def forward(self, x: Tensor) -> Tensor:
        """Round values of any shape; the result has their dtype."""
        if self.histogram is not None:
            self.histogram.add(x.detach().float().cpu().numpy())
            return x
        # torch cannot trace its operator for free sizes
        rounding = _traced_rounding if torch.compiler.is_exporting() else _rounding
        return rounding(x.float(), self.scale, self.zero_point).to(x.dtype)


def _rounding(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, LEVELS)


@torch.library.custom_op("seamseg_deploy::fake_quantise", mutates_args=())
def _traced_rounding(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Do what :func:`_rounding` does, as one operator for the translation to other formats."""
    return _rounding(x, scale, zero_point)


@_traced_rounding.register_fake
def _(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.empty_like(x)


def weight_scales(weight: Tensor) -> Tensor:
    """Return the step of the levels of each output channel of a weight `O x ...`, float32 `O`."""
    scale = weight.detach().float().flatten(1).abs().amax(dim=1) / WEIGHT_LEVELS
    return torch.where(scale >= torch.finfo(torch.float32).tiny, scale, 1.0)


class RoundedWeight(nn.Module):
    """Rounds a weight to 255 levels, symmetric to 0, for each output channel."""

    def forward(self, weight: Tensor) -> Tensor:
        """Round a weight `O x ...`; gradients pass unchanged."""
        scale = weight_scales(weight)
        # zero points of a float type: the host need not check them
        zero = torch.zeros_like(scale)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -WEIGHT_LEVELS, WEIGHT_LEVELS)
