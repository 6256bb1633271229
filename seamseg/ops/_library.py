"""The operators `torch.ops.seamseg.*`: their registration, the kernels of `csrc/`, and checks of arguments.

The C++ library registers the schemas of `schemas.inc`, so that a program without Python has them too;
this file does where it is not loaded. The dispatcher takes the C++ kernel for CPU tensors and the CUDA kernel for CUDA
tensors where they were built, and the plain-torch implementation everywhere else. Each operator's file calls
:func:`define` once.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from seamseg.utils.native import DISABLED, find, load_failure, uncovered_gpus, warn_missing

# a fragment: the C++ library is the one that may own the namespace
_library = torch.library.Library("seamseg", "FRAGMENT")
_defined: list[str] = []
_kernels: dict[str, str] = {}

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

# the file is a list of string literals in C++ and in Python
_schemas: list[str] = ast.literal_eval(f"[{Path(__file__).with_name('schemas.inc').read_text()}]")
SCHEMAS = {schema.partition("(")[0]: schema for schema in _schemas}
"""Name, arguments and results of each operator by its name, as `box_iou(Tensor a, Tensor b) -> Tensor`."""


def define(
    name: str,
    plain: Implementation,
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Implementation:
    """Register an operator of :data:`SCHEMAS`; return it, to be called as its plain form.

    `plain` is the implementation for every device without a kernel, `fake` returns empty results of the right shape.
    `backward` and `setup_context`, see `torch.library.register_autograd`, make it differentiable once, by the operator
    `<name>_backward`, which is defined before.
    """
    if not hasattr(torch.ops.seamseg, name):
        _library.define(SCHEMAS[name])
    _library.impl(name, plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"seamseg::{name}", fake, lib=_library)
    _defined.append(name)
    if backward is not None:

        def refuse(ctx: Any, *gradients: Any) -> None:
            raise RuntimeError(f"{name}_backward: has no derivative, {name} is differentiable once")

        register = torch.library.register_autograd
        register(f"seamseg::{name}", backward, setup_context=setup_context, lib=_library)
        # without a formula it would return zeros
        register(f"seamseg::{name}_backward", refuse, setup_context=lambda ctx, inputs, output: None, lib=_library)
    return cast(Implementation, getattr(torch.ops.seamseg, name).default)


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `backward(ctx, saved, *gradients)` of an autograd function: a second derivative is an error.

    `torch.autograd.function.once_differentiable` cuts the graph between gradients and inputs instead, and
    `torch.autograd.grad` of something before the function then leaves out a part of the sum, without an error.
    `saved` are the tensors that the forward pass saved; through them the graph leads to each input.
    """
    name = backward.__qualname__.partition(".")[0].strip("_")

    @wraps(backward)
    def run(ctx: Any, *gradients: Tensor) -> Any:
        try:
            saved = ctx.saved_tensors
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                # an error of a part that is recomputed
                raise
            raise RuntimeError(
                f"{name}: its output, or what it was computed with (residual, weight, bias), was changed in place "
                "before the backward pass, which recovers the input from them. "
                "Let no in-place operation follow the layer: nn.ReLU(inplace=False) instead of True, `y = y + x` "
                f"instead of `y += x`; or give the activation to the layer itself. ({error})"
            ) from error
        with torch.no_grad():
            found = backward(ctx, saved, *gradients)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return found
        return _NoSecondDerivative.apply(name, found, *gradients, *saved)

    return run


class _NoSecondDerivative(torch.autograd.Function):
    """The gradients that a backward pass has found from its sources; its own backward pass is an error."""

    @staticmethod
    def forward(ctx: Any, name: str, found: tuple[Any, ...], *sources: Any) -> tuple[Any, ...]:
        ctx.name = name
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(
            f"{ctx.name}: is differentiable once, there is no second derivative; of the norms, ABN has one "
            "(`seamseg.inplace_abn.to_batchnorm` replaces in-place ABN)"
        )


def implementations() -> dict[str, str]:
    """Return the implementations of each operator: the compiled kernels by device, or plain torch."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = {}
    for name in sorted(_defined):
        languages = [language for key, language in (("CPU", "C++"), ("CUDA", "CUDA")) if has(f"seamseg::{name}", key)]
        found[name] = " and ".join(languages) or "plain torch"
    return found


def kernels() -> dict[str, str]:
    """Return for each device "loaded", or why there are no kernels; a GPU's are loaded with the first use of CUDA."""
    return dict(_kernels)


def _load_kernels() -> None:
    """Load the kernels that were built; warn once about those that are missing."""
    if DISABLED:
        _kernels.update(CPU=DISABLED, GPU=DISABLED)
        return
    _load("_C", "CPU")
    if torch.version.cuda is None:
        _kernels["GPU"] = "torch is a build for the CPU"
        return
    try:
        find("_C_cuda")
        _kernels["GPU"] = "built; loaded with the first use of a GPU"
    except ImportError as error:
        _kernels["GPU"] = load_failure("_C_cuda", error)
    # Listing the GPUs would initialise CUDA: at import that costs every process that computes on the CPU time and
    # memory, and processes forked later could not use a GPU. torch compares its own architectures in the same hook.
    torch.cuda._lazy_call(_load_cuda_kernels)


def _load_cuda_kernels() -> None:
    """Load the CUDA kernels if they run on every GPU that is visible: operators find them by device type only."""
    gpus = {
        f"GPU {index}, {torch.cuda.get_device_name(index)}": torch.cuda.get_device_capability(index)
        for index in range(torch.cuda.device_count())
    }
    lacking = uncovered_gpus(gpus)
    if lacking is None:
        _load("_C_cuda", "GPU")
        return
    reason, rebuild = lacking
    _kernels["GPU"] = f"{reason}; to compile them: {rebuild}"
    warn_missing("operators for the GPU", reason, rebuild)


def _load(name: str, device: str) -> None:
    try:
        spec = find(name)
        module = importlib.util.module_from_spec(spec)
        assert spec.loader is not None, "checked by find"
        spec.loader.exec_module(module)
    except ImportError as error:
        _kernels[device] = load_failure(name, error)
        warn_missing(f"operators for the {device}", _kernels[device])
        return
    sys.modules[spec.name] = module
    _kernels[device] = "loaded"


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums and of numbers per channel: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(x: Tensor) -> Tensor:
    """Convert half precision to float32: float16 overflows at areas of 256 x 256 pixels, bfloat16 is coarse."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_boxes(op: str, name: str, boxes: Tensor, dims: int | None = 2) -> None:
    """Require a floating tensor of boxes or codes, `... x 4`, with `dims` dimensions (any number if None)."""
    if not isinstance(boxes, Tensor) or not boxes.is_floating_point():
        raise TypeError(f"{op}: {name} must be a floating point tensor, got {describe(boxes)}")
    if boxes.dim() == 0 or boxes.shape[-1] != 4 or (dims is not None and boxes.dim() != dims):
        shape = "N x 4" if dims == 2 else "... x 4"
        raise ValueError(f"{op}: {name} must be {shape}, got {describe(boxes)}")


def describe(value: object) -> str:
    """Describe an argument for error messages, as in `float32 tensor of shape 3x4`."""
    if isinstance(value, Tensor):
        shape = "x".join(map(str, value.shape)) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {shape}"
    return f"a {type(value).__name__}"


_load_kernels()
