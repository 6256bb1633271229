"""Networks of other libraries, for a predictor: their interface, and their settings as a configuration of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from seamseg.config import Config, config_from_string
from seamseg.inference.options import InferenceOptions
from seamseg.maps.predictions import InferenceNetwork
from seamseg.structures import Normalise


class ForeignNetwork(InferenceNetwork):
    """A network in evaluation mode, which is moved to a device and computes in `dtype`."""

    def __init__(self, net: nn.Module, normalise: Normalise, device: torch.device, dtype: torch.dtype) -> None:
        self.net = net.to(device)
        self.normalise = normalise
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.dtype = dtype
        self.precision = str(dtype).removeprefix("torch.")

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute without gradients, in the compute dtype."""
        with torch.inference_mode(), torch.autocast(self.device.type, self.dtype, self.dtype != torch.float32):
            yield


def neutral_config(kind: str, keys: Mapping[str, object], name: str, options: InferenceOptions) -> Config:
    """Return a configuration with the settings, `section.key`, of a network of another library; its split is val."""
    options.check_overrides(("general", "dataloader"), f"has no effect on {name}, which is no network of seamseg")
    texts: dict[str, list[str]] = {}
    for key, value in {**keys, "dataloader.val_set": "val"}.items():
        section, _, option = key.partition(".")
        texts.setdefault(section, [f"[{section}]"]).append(f"{option} = {value}")
    ini = "\n".join(line for lines in texts.values() for line in lines)
    return config_from_string(ini, kind, name, options.overrides)
