"""Predictors of small networks, and their inputs."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.data.input_size import InputSize
from seamseg.inference.network import TorchNetwork
from seamseg.inference.options import Augmentation, Tiling
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import MapFormat, Prediction
from seamseg.results import Thresholds, result_of
from seamseg.structures import Normalise, PackedSequence

CPU = torch.device("cpu")


class StandIn(nn.Module):
    """A network without weights: what predictors ask one for, but `predict`."""

    kind = "panoptic"
    result_type = property(lambda net: result_of(net.kind))
    dtype = torch.float32
    nms_threshold: float | None = None
    map_formats: ClassVar[dict[str, MapFormat]] = {}
    predicts_ids = compiled = False

    def inference(self, *arguments: Any) -> None:
        """As `Network.inference`."""


class RedCars(StandIn):
    """Finds the red cars of an image of :func:`support.micro.make_dataset` in one box."""

    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction]:
        return [self.found(image) for image in images]

    @staticmethod
    def red(image: Tensor) -> Tensor:
        return image[0] > image[1] + 1

    def boxes(self, image: Tensor) -> Tensor:
        rows, columns = (torch.nonzero(self.red(image).any(dim)).flatten() for dim in (1, 0))
        found = [[rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]] if len(rows) else []
        return torch.tensor(found, dtype=torch.float32).view(-1, 4)


def predictor_of(
    net: nn.Module,
    metadata: Metadata,
    thresholds: Thresholds,
    size: InputSize = InputSize(),  # noqa: B008  # frozen
    tiling: Tiling = Tiling(),  # noqa: B008  # frozen
    augmentation: Augmentation | None = None,
) -> Predictor[Any]:
    """A predictor on the CPU without mean and deviation: the network's input is `pixels / 255`."""
    network = TorchNetwork(net, Normalise(None, None), CPU, augmentation)
    return Predictor(network, metadata, size, thresholds, tiling)


def as_input(pixels: np.ndarray) -> Tensor:
    """The network's input, `3 x H x W`, of such a predictor for an image."""
    return Normalise(None, None)(torch.from_numpy(pixels).permute(2, 0, 1))
