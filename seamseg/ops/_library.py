"""The operators `torch.ops.seamseg.*`: schemas, plain-torch implementations, and the kernels of `csrc/` over them.

The dispatcher takes the C++ kernel for CPU tensors and the CUDA kernel for CUDA tensors where they were built, and the
plain-torch implementation everywhere else. Each operator's file calls :func:`define` once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

from seamseg.utils.native import disabled_reason, find, load_failure, uncovered_gpus, warn_missing

_library = torch.library.Library("seamseg", "DEF")
_defined: list[str] = []
_kernels: dict[str, str] = {}


def define(schema: str, plain: Callable[..., Any], fake: Callable[..., Any], composite: bool = False) -> Any:
    """Add an operator.

    Parameters
    ----------
    schema : name, arguments and results, as `box_iou(Tensor a, Tensor b) -> Tensor`
    plain : the implementation in plain torch, for every device without a kernel
    fake : gives empty results of the right shape, for tracing
    composite : the operator is only ever served by `plain`

    Returns
    -------
    the operator, to be called
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"seamseg::{name}", fake, lib=_library)
    if not composite:
        _defined.append(name)
    return getattr(torch.ops.seamseg, name).default


def differentiate(name: str, backward: Callable[..., Any], setup_context: Callable[..., None]) -> None:
    """Give an operator a backward formula; see `torch.library.register_autograd`."""
    torch.library.register_autograd(f"seamseg::{name}", backward, setup_context=setup_context, lib=_library)


def differentiate_no_further(name: str) -> None:
    """Make the backward pass of an operator an error: without a formula it would give zeros."""

    def refuse(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(f"{name}: has no derivative, the operator that it belongs to is differentiable once")

    differentiate(name, refuse, lambda ctx, inputs, output: None)


def implementations() -> dict[str, str]:
    """What serves each operator: the compiled kernels by device, plain torch for the rest."""

    def served(name: str) -> str:
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        devices = [said for key, said in (("CPU", "C++"), ("CUDA", "CUDA")) if has(f"seamseg::{name}", key)]
        return " and ".join(devices) if devices else "plain torch"

    return {name: served(name) for name in sorted(_defined)}


def kernels() -> dict[str, str]:
    """By device, "loaded" or why the compiled kernels are not there.

    Those of the GPU are loaded when the process initialises CUDA.
    """
    return dict(_kernels)


def _load_kernels() -> None:
    """Load what was built; say once why kernels that should be there are not."""
    if unwanted := disabled_reason():
        _kernels.update(CPU=unwanted, GPU=unwanted)
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
    # Asking for the GPUs would initialise CUDA: at import it would cost every process that only computes on the CPU
    # time and memory, and processes forked later could not use a GPU at all. torch compares its own architectures in
    # the same place. The name is private; without it the comparison is made here.
    getattr(torch.cuda, "_lazy_call", _call_if_available)(_load_cuda_kernels)


def _call_if_available(call: Callable[[], None]) -> None:
    if torch.cuda.is_available():
        call()


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
        _import(name)
        _kernels[device] = "loaded"
    except ImportError as error:
        _kernels[device] = load_failure(name, error)
        warn_missing(f"operators for the {device}", _kernels[device])


def _import(name: str) -> None:
    spec = find(name)
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None  # `find` has looked
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module


_load_kernels()
