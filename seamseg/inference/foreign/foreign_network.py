"""What the networks of other libraries have in common, for a predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import nn

from seamseg.data.transforms import Normalise
from seamseg.predictions import MapFormat


class ForeignNetwork:
    """A network on a device; see :class:`seamseg.inference.predictor.InferenceNetwork`.

    Parameters
    ----------
    net : network in evaluation mode; is moved to `device`
    normalise : conversion of bytes to the network's input
    device : device to compute on
    dtype : dtype to compute in
    """

    uses_torch = True
    averaged = False
    tiles_problem = None
    map_formats: Mapping[str, MapFormat] = MappingProxyType({})

    def __init__(self, net: nn.Module, normalise: Normalise, device: torch.device, dtype: torch.dtype) -> None:
        self.net = net.to(device)
        self.normalise = normalise.to(device)
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.dtype = dtype

    @property
    def precision(self) -> str:
        """Name of the compute dtype."""
        return str(self.dtype).removeprefix("torch.")

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute without gradients, in the compute dtype."""
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, self.dtype != torch.float32):
            yield
