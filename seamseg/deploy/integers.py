"""Networks for int8 packages: simulated int8 arithmetic becomes what the compiler fuses into integer kernels.

Values are quantised and dequantised between float operators, as in an ONNX file. The passes of torchao replace a
dequantised input and weight around a convolution or linear layer by a kernel of oneDNN; what they do not find would
silently compute in float, so the kernels are counted (docs/how-to/int8.md).
"""

from __future__ import annotations

import copy
import logging
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.data.transforms import Normalise
from seamseg.inference.network import TorchNetwork
from seamseg.models.panoptic import PanopticNet
from seamseg.models.quantised import QuantisedLayer, choosing_ranges, quantised
from seamseg.models.semantic import SemanticNet
from seamseg.ops.norm import ABN
from seamseg.ops.quantisation import LEVELS, WEIGHT_LEVELS, FakeQuantise, weight_scales
from seamseg.utils.errors import InputError, SeamsegError

Module = TypeVar("Module", bound=nn.Module)

_KERNELS = re.compile(r"aoti_torch_cpu__q(?:conv|linear)\w*_pointwise\w*\(")
"""Calls of integer kernels in the source of a package."""
_NORMS = (ABN, nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm)


def calibrated(
    net: PanopticNet | SemanticNet, normalise: Normalise, images: Iterable[np.ndarray]
) -> PanopticNet | SemanticNet:
    """Return a copy of a folded network that simulates int8 arithmetic, with the ranges of images.

    Parameters
    ----------
    net : folded, of this package's layers only
    normalise : function from bytes to the input of the network
    images : inputs `H x W x 3` uint8

    Raises
    ------
    InputError
        if a norm is not folded, there is no image, or the network finds no objects in them
    """
    left = next((name for name, module in net.named_modules() if isinstance(module, _NORMS)), None)
    if left is not None:
        raise InputError(f"int8: the norm {left} cannot be folded: only an ONNX file is quantised around it")
    made = quantised(copy.deepcopy(net)).eval()
    network, used = TorchNetwork(made, normalise, next(made.parameters()).device), 0
    with choosing_ranges(made):
        for image in images:
            network.run([image])
            used += 1
        if not used:
            raise InputError("there is no image to calibrate with")
    return made


def integer_form(net: Module) -> Module:
    """Return a copy of a network with simulated int8 arithmetic whose layers the compiler can fuse."""
    _load_passes()
    made = copy.deepcopy(net).eval().requires_grad_(False)
    for module in made.modules():
        if isinstance(module, QuantisedLayer) and module.after is not None:
            weight = _IntegerWeight(module.weight)
            # a parameter would be taken for the compute type of the network
            del module.weight
            module.register_buffer("weight", weight.values)
            module.rounded_weight = weight
    for module in made.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, FakeQuantise):
                setattr(module, name, _Rounding(child))
    return made


class _Rounding(nn.Module):
    """The levels of a :class:`FakeQuantise`, as quantisation and dequantisation."""

    histogram = None

    def __init__(self, place: FakeQuantise) -> None:
        super().__init__()
        self.levels = (float(place.scale), int(place.zero_point), 0, LEVELS, torch.uint8)

    def forward(self, x: Tensor) -> Tensor:
        operators = torch.ops.quantized_decomposed
        rounded: Tensor = operators.dequantize_per_tensor(
            operators.quantize_per_tensor(x.float(), *self.levels), *self.levels
        )
        return rounded


class _IntegerWeight(nn.Module):
    """Dequantises a weight, one scale an output channel."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        scale = weight_scales(weight)
        column = scale.view(-1, *[1] * (weight.dim() - 1))
        levels = (weight.detach() / column).round().clamp(-WEIGHT_LEVELS, WEIGHT_LEVELS)
        self.values = levels.to(torch.int8)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int64))
        self._calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        # the compiler merges equal calls, but fuses only weights that one layer uses: the lower limit, which is not
        # used in the computation, makes the calls of a layer that runs on several levels differ
        self._calls = self._calls % WEIGHT_LEVELS + 1
        dequantised: Tensor = torch.ops.quantized_decomposed.dequantize_per_channel(
            weight, self.scale, self.zero, 0, -self._calls, WEIGHT_LEVELS, torch.int8
        )
        return dequantised


def fuse_pooling(program: torch.export.ExportedProgram) -> None:
    """Quantise the results of max pooling again, which changes nothing: the compiler fuses dequantised inputs only."""
    graph, operators = program.graph_module.graph, torch.ops.quantized_decomposed
    for node in list(graph.nodes):
        if node.op != "call_function" or "max_pool2d" not in str(node.target):
            continue
        source = node.args[0]
        if source.target is not operators.dequantize_per_tensor.default:
            continue
        with graph.inserting_after(node):
            levels = graph.call_function(operators.quantize_per_tensor.default, (node, *source.args[1:]))
        with graph.inserting_after(levels):
            values = graph.call_function(operators.dequantize_per_tensor.default, (levels, *source.args[1:]))
        # of the same shape
        levels.meta, values.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(values, delete_user_cb=lambda user, own=levels: user is not own)
    program.graph_module.recompile()


def check_kernels(package: Path, program: torch.export.ExportedProgram) -> None:
    """Raise SeamsegError unless a package computes each convolution and linear layer with an int8 weight in int8."""
    weights = torch.ops.quantized_decomposed.dequantize_per_channel.default
    wanted = sum(node.op == "call_function" and node.target is weights for node in program.graph.nodes)
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp")]
    found = sum(len(_KERNELS.findall(source)) for source in sources)
    if found < wanted:
        raise SeamsegError(f"the compiler computes {found} of {wanted} quantised layers in int8, the others in float")


def _load_passes() -> None:
    """Register the passes of torchao with the compiler."""
    log = logging.getLogger("torch.utils._pytree")
    level = log.level
    try:
        # of an Enum that torch registers itself by now
        log.setLevel(logging.ERROR)
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401
    except ImportError as error:
        raise InputError(f"int8 packages need torchao ({error}): pip install 'seamseg[export]'") from None
    finally:
        log.setLevel(level)
