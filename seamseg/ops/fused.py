"""Convolutions and linear layers for inference: bias and activation in the same pass, weights packed once.

On a CPU they call oneDNN through operators that PyTorch has for its compiler. Those are private: where they are missing
or fail, the public functions compute the same.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops.activation import activate_, check_activation
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.output import warn

_FAILED: set[str] = set()
"""Operators that failed once; they are not called again."""


class _Fused(nn.Module):
    """Weight, bias and activation of a layer for inference, and the packed weight of oneDNN."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        activation: str = "identity",
        activation_param: float = 0.0,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        check_activation(type(self).__name__, activation, activation_param)
        self.weight = nn.Parameter(weight.detach().contiguous(memory_format=memory_format), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.activation = activation
        self.activation_param = activation_param
        self._packed: dict[int, Tensor] = {}
        self._packed_from = 0, 0

    def _packs(self) -> dict[int, Tensor]:
        """Return the packed weights by number, none if the weight has changed since they were packed."""
        state = self.weight.data_ptr(), 0 if self.weight.is_inference() else self.weight._version
        if self._packed_from != state:
            self._packed, self._packed_from = {}, state
        return self._packed

    def _unary(self) -> tuple[str, list[float], str]:
        """Return the activation that oneDNN applies in the same pass: leaky ReLU, or none."""
        return ("leaky_relu", [self.activation_param], "") if self.activation == "leaky_relu" else ("none", [], "")

    def _activate(self, y: Tensor) -> Tensor:
        return activate_(y, self.activation, self.activation_param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._packed = {}
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        # a packed weight cannot be copied or saved
        return {**self.__dict__, "_packed": {}}


class FusedConv2d(_Fused):
    """`act(convolution(x) + bias)`, for inference only: weight `O x I/groups x kh x kw` and bias `O` have no gradient.

    Stride, padding (zeros), dilation and groups are taken from the convolution `like`.
    """

    padding_mode = "zeros"

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        like: nn.Conv2d | FusedConv2d,
        activation: str = "identity",
        activation_param: float = 0.0,
    ) -> None:
        super().__init__(weight, bias, activation, activation_param, torch.channels_last)
        if like.padding_mode != "zeros" or isinstance(like.padding, str):
            raise ValueError(f"FusedConv2d: padding must be a number of zeros, got {like}")
        self.stride: list[int] = list(like.stride)
        self.padding: list[int] = list(like.padding)
        self.dilation: list[int] = list(like.dilation)
        self.groups: int = like.groups

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map `N x I x H x W` to `N x O x h x w`, a new tensor.

        The residual, of the shape of the result, is added before the activation.
        """
        # torch 2.11 cannot add to a map of one pixel
        if _usable("convolution", x, self.weight) and (residual is None or residual.shape[2:].numel() > 1):
            y = _attempt("convolution", lambda: self._one_pass(x, residual))
            if y is not None:
                return y
        y = functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        if residual is not None:
            y = y.add_(residual)
        return self._activate(y)

    def _one_pass(self, x: Tensor, residual: Tensor | None) -> Tensor:
        op = torch.ops.mkldnn
        packs = self._packs()
        if 0 not in packs:
            packs[0] = op._reorder_convolution_weight(
                self.weight, self.padding, self.stride, self.dilation, self.groups, list(x.shape)
            )
        settings = (packs[0], self.bias, self.padding, self.stride, self.dilation, self.groups)
        if residual is not None:
            return self._activate(op._convolution_pointwise.binary(x, residual, *settings, "add", 1.0, None, [], ""))
        unary = self._unary()
        y = op._convolution_pointwise(x, *settings, *unary)
        return self._activate(y) if unary[0] == "none" else y


class FusedLinear(_Fused):
    """`act(x weight^T + bias)`, for inference only: weight `O x I` and bias `O` have no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `K x I` to `K x O`, a new tensor."""
        if _usable("linear", x, self.weight):
            y = _attempt("linear", lambda: self._one_pass(x))
            if y is not None:
                return y
        return self._activate(functional.linear(x, self.weight, self.bias))

    def _one_pass(self, x: Tensor) -> Tensor:
        op = torch.ops.mkldnn
        packs = self._packs()
        if not packs:
            packs[0] = op._reorder_linear_weight(self.weight, x.shape[0])
        unary = self._unary()
        y = op._linear_pointwise(x, packs[0], self.bias, *unary)
        return self._activate(y) if unary[0] == "none" else y


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Compute dtypes of a network by name."""


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return a compute dtype by its name; auto is bf16 where it is faster than fp32."""
    if precision == "auto":
        precision = "bf16" if bf16_is_fast(device) else "fp32"
    return PRECISIONS[precision]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context for `[general] precision`: fp32, bf16, fp16, or auto (bf16 where it is fast).

    Weights, statistics and losses stay float32.
    """
    dtype = compute_dtype(precision, device)
    mixed = dtype is not torch.float32
    return torch.autocast(device.type, dtype=dtype if mixed else torch.bfloat16, enabled=mixed)


def bf16_is_fast(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 faster than float32.

    A CPU does with AMX, or with AVX512-BF16 unless it is Intel's, a GPU from compute capability 8.0. Elsewhere bfloat16
    may still be supported, by conversion to float32 around each operation, and is slower than that: a CPU with AVX-512
    only, a GPU before Ampere.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    # private names, which other releases may lack
    avx, amx = (getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    # virtual machines hide AMX; a convolution with the AVX512-BF16 of such a Xeon took twice as long as in float32
    return bool(amx or (avx and not _is_intel()))


@cache
def _is_intel() -> bool:
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        vendor = platform.processor()
    return "GenuineIntel" in vendor


def onednn_takes_bf16() -> bool:
    """Return whether the operators of oneDNN accept bfloat16 on this CPU, fast or not."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def _usable(kind: str, x: Tensor, weight: Tensor) -> bool:
    if kind in _FAILED or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    if x.device.type != "cpu" or weight.device.type != "cpu" or x.numel() == 0 or x.dtype != weight.dtype:
        return False
    if not torch.backends.mkldnn.enabled or not torch.backends.mkldnn.is_available():
        return False
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and onednn_takes_bf16())


def _attempt(kind: str, call: Callable[[], Tensor]) -> Tensor | None:
    try:
        return call()
    except (AttributeError, RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        # a lack of memory, which may be over at the next call; or the death of a process, which a signal handler raises
        # at any place
        if lacks_memory(error) or "DataLoader worker" in str(error):
            raise
        _FAILED.add(kind)
        reason = " ".join(str(error).split())[:120]
        warn(f"PyTorch's fused {kind} fails ({reason}); using unfused operators", stacklevel=4)
        return None
