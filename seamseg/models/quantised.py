"""Networks trained for int8: norms folded into the convolutions, and int8 arithmetic simulated (docs/how-to/int8.md).

Such a network computes what an int8 engine computes for its exported file, up to rounding: weights, inputs and outputs
of its convolutions and linear layers are rounded to 8 bits. The layers of :data:`FLOAT_LAYERS` stay in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.models.backbones.fpn import FPN
from seamseg.models.folded import (
    ChannelwiseActivation,
    FoldedBlock,
    FoldedBoxBranch,
    FoldedDeepLab,
    FoldedDeeplabV3,
    FoldedRPNHead,
)
from seamseg.models.heads.roi import ROIHead
from seamseg.models.network import Network
from seamseg.ops.abn_projection import PointwiseConv
from seamseg.ops.activation import activate_
from seamseg.ops.fused import FusedConv2d, FusedLinear
from seamseg.ops.norm import is_plain
from seamseg.ops.quantisation import FakeQuantise, Histogram, RoundedWeight
from seamseg.utils.errors import InputError

FLOAT_LAYERS = (
    "rpn_head.scores.",
    "roi_head.roi_",
    "sem_head.classifiers.",
    "sem_head.conv_sem.",
    "net.cls.",
)
"""Layers that stay in float, by their place in the network, `net.` in front: those that compute the outputs."""

Module = TypeVar("Module", bound=nn.Module)
_Layer = FusedConv2d | FusedLinear | nn.Conv2d | nn.Linear


class QuantisedLayer(nn.Module):
    """A trainable copy of a layer with its activation, and the places where values are rounded if it is `quantised`.

    With `float_input` its input is not rounded yet; with `residual` another map is added to its output.
    """

    def __init__(self, layer: _Layer, quantised: bool, float_input: bool = False, residual: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.activation = str(getattr(layer, "activation", "identity"))
        self.activation_param = float(getattr(layer, "activation_param", 0.0))
        slope = self.activation_param if self.activation == "leaky_relu" else None
        active = self.activation != "identity"
        self.before = FakeQuantise() if quantised and float_input else None
        self.after = FakeQuantise(None if residual else slope) if quantised else None
        self.total = FakeQuantise(slope) if quantised and residual else None
        self.activated = FakeQuantise() if quantised and active else None
        self.rounded_weight: nn.Module = RoundedWeight()

    def _rounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and the weight, rounded; the weight is not while ranges are being chosen."""
        if self.after is None:
            return x, self.weight
        x = x if self.before is None else self.before(x)
        return x, self.weight if self.after.histogram is not None else self.rounded_weight(self.weight)

    def _finish(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        y = y if self.after is None else self.after(y)
        if residual is not None:
            y = y + residual
            y = y if self.total is None else self.total(y)
        return self._activate(y, self.activated)

    def _activate(self, y: Tensor, place: nn.Module | None) -> Tensor:
        y = activate_(y, self.activation, self.activation_param)
        return y if place is None else place(y)


class QuantisedConv2d(QuantisedLayer):
    """The counterpart of :class:`seamseg.ops.fused.FusedConv2d`.

    `further_levels` are the places after it and its activation on all levels but the first: values differ there.
    """

    def __init__(
        self, layer: FusedConv2d | nn.Conv2d, quantised: bool, float_input: bool = False, residual: bool = False
    ) -> None:
        super().__init__(layer, quantised, float_input, residual)
        self.further_levels = nn.ModuleList()
        self.options: tuple[Any, ...] = (layer.stride, layer.padding, layer.dilation, layer.groups)

    def forward(self, x: Tensor, residual: Tensor | None = None, level: int = 0) -> Tensor:
        """Map `N x I x H x W` to `N x O x h x w`; the residual is added before the activation."""
        x, weight = self._rounded(x)
        y = functional.conv2d(x, weight, self.bias, *self.options)
        if not level or not self.further_levels:
            return self._finish(y, residual)
        places = self.further_levels[level - 1]
        assert isinstance(places, nn.ModuleList)
        return self._activate(places[0](y), places[1])

    def separate_levels(self, count: int) -> None:
        """Give each of a number of levels its own ranges."""
        if self.after is not None and self.activated is not None:
            pairs = ((FakeQuantise(self.after.slope), FakeQuantise()) for _ in range(count - 1))
            self.further_levels = nn.ModuleList(nn.ModuleList(pair) for pair in pairs)


class QuantisedLinear(QuantisedLayer):
    """The counterpart of :class:`seamseg.ops.fused.FusedLinear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `K x I` to `K x O`."""
        x, weight = self._rounded(x)
        return self._finish(functional.linear(x, weight, self.bias))


class QuantisedChannelwise(ChannelwiseActivation):
    """A :class:`seamseg.models.folded.ChannelwiseActivation`, computed in float, whose result is rounded."""

    def __init__(self, layer: ChannelwiseActivation) -> None:
        super().__init__(layer.scale.flatten(), layer.offset.flatten(), layer.activation, layer.activation_param)
        self.activated = FakeQuantise()

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x H x W` to the same shape, a new tensor."""
        y: Tensor = self.activated(super().forward(x))
        return y


def quantised(folded: Module) -> Module:
    """Change the result of :func:`seamseg.models.folding.fold_layers` in place to simulate int8 arithmetic.

    All its norms must be folded. The names of weights and biases stay, all of which get gradients. The network is in
    training mode, and :func:`choosing_ranges` chooses its ranges.
    """
    made: dict[str, nn.Module] = {}
    for name, layer, float_input, residual in _layers(folded):
        rounded = not any(part in f"net.{name}." for part in FLOAT_LAYERS)
        # the heads read the weights of plain ones
        if not rounded and type(layer) not in (FusedConv2d, FusedLinear):
            continue
        if isinstance(layer, (FusedLinear, nn.Linear)):
            made[name] = QuantisedLinear(layer, rounded, float_input)
        else:
            made[name] = QuantisedConv2d(layer, rounded, float_input, residual)
    for name, module in folded.named_modules():
        if isinstance(module, ChannelwiseActivation):
            made[name] = QuantisedChannelwise(module)
        elif isinstance(module, FPN):
            module.sums = nn.ModuleList(FakeQuantise() for _ in module.sums)
    for name, module in made.items():
        parent, _, own = name.rpartition(".")
        setattr(folded.get_submodule(parent), own, module)
    rpn_head = getattr(folded, "rpn_head", None)
    if isinstance(rpn_head, FoldedRPNHead):
        hidden: nn.Module = rpn_head.hidden
        assert isinstance(hidden, QuantisedConv2d) and isinstance(folded, Network)
        hidden.separate_levels(len(folded.options.anchors.strides))
    return folded.train().requires_grad_(True)


def is_quantised(net: nn.Module) -> bool:
    """Return whether a network simulates int8 arithmetic."""
    return any(isinstance(module, FakeQuantise) for module in net.modules())


def _layers(net: nn.Module) -> Iterator[tuple[str, _Layer, bool, bool]]:
    """Yield name and layer, whether a float operation made its input, and whether a map is added to it."""
    layers = {name: module for name, module in net.named_modules() if _is_known(module)}
    # the first layer takes the image
    float_inputs: list[nn.Module] = [next(iter(layers.values()))]
    residuals: list[nn.Module] = []
    for module in net.modules():
        if isinstance(module, FoldedBlock):
            residuals.append(module.convs[-1])
        elif isinstance(module, FoldedDeepLab):
            # after the average
            float_inputs.append(module.joins[0])
            residuals += list(module.joins)[1:]
        elif isinstance(module, FoldedDeeplabV3):
            float_inputs += [module.reduce_context] + [module.context] * (module.pooling_size is None)
            residuals += list(module.joins)
        elif isinstance(module, ROIHead):
            # after ROI sampling
            branch: nn.Module = module.fc
            assert isinstance(branch, FoldedBoxBranch)
            float_inputs += [branch.first, module.conv[0]] if module.with_masks else [branch.first]
    for name, layer in layers.items():
        yield name, layer, any(layer is one for one in float_inputs), any(layer is one for one in residuals)


def _is_known(layer: nn.Module) -> TypeGuard[_Layer]:
    """Return whether a quantised layer computes the same; others stay in float."""
    if not is_plain(layer, FusedConv2d, FusedLinear, nn.Conv2d, PointwiseConv, nn.Linear):
        return False
    return "weight" in layer._parameters and getattr(layer, "padding_mode", "zeros") == "zeros"


@contextmanager
def choosing_ranges(net: nn.Module) -> Iterator[None]:
    """Choose the ranges of a network from :func:`quantised` by the values that it computes inside a `with` block.

    It computes in float there, best in evaluation mode. Each range has the least mean square error. InputError if some
    layer was not used.
    """
    places = {name: module for name, module in net.named_modules() if isinstance(module, FakeQuantise)}
    for place in places.values():
        place.histogram = Histogram()
    try:
        yield
        for name, place in places.items():
            assert place.histogram is not None
            if not place.histogram.counts.any():
                raise InputError(
                    f"the network finds no objects in the images for the calibration, so that {name} has no range: "
                    "train it longer, or take other or more images"
                )
            with torch.no_grad():
                place.set_range(*place.histogram.best_range(place.slope))
    finally:
        for place in places.values():
            place.histogram = None
