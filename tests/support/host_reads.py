"""Counts where a step asks the device for a value, where the host of a GPU would wait, and what it calls: on a CPU.

Copies to another device cannot happen there: tests marked `gpu` are for that.
"""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import seamseg

# never by the name of a folder: a clone of the package has its name, and so the tests would be part of it
_PACKAGES = (Path(seamseg.__file__).parent, Path(torch.optim.__file__).parent)
_VALUES = {"_local_scalar_dense", "is_nonzero", "equal", "allclose", "bincount"}
"""The first is `item()`, `bool()`, `int()` and `float()`."""
_SHAPES = {"nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique", "_unique2", "nms"}
_SHAPES |= {"unique_dim", "unique_dim_consecutive", "unique_consecutive"}
"""The result of `nms`, ours, has as many rows as boxes stay."""
_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
_TO_HOST = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
"""The dispatcher does not see these on the CPU."""
_FROM_HOST = {torch.tensor, torch.as_tensor}
_MASKS = (torch.bool, torch.uint8)


class HostReads:
    """Context in which reads are counted by their place, `operation: file:line < caller`."""

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()
        self._modes = (_Operations(self), _Functions(self))

    @property
    def count(self) -> int:
        return self.places.total()

    def found(self, what: str) -> None:
        stack = [(name, f.lineno) for f in traceback.extract_stack() if (name := name_in_package(f.filename))]
        where = " < ".join(f"{name}:{line}" for name, line in reversed(stack[-3:]))
        self.places[f"{what}: {where or 'outside of the package'}"] += 1

    def __enter__(self) -> "HostReads":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def __str__(self) -> str:
        return "\n".join([f"{self.count} reads", *(f"{n:4} {place}" for place, n in self.places.most_common())])


def name_in_package(path: str) -> str:
    """The path of a file within seamseg or `torch.optim`, empty for other files."""
    return next((str(Path(path).relative_to(p)) for p in _PACKAGES if Path(path).is_relative_to(p)), "")


class _Operations(TorchDispatchMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        masked = name in _INDEXED and any(isinstance(i, Tensor) and i.dtype in _MASKS for i in args[1])
        repeats = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in _VALUES or name in _SHAPES or masked or repeats:
            self.reads.found(name)
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # numbers of the host that go to a device in a copy that the host waits for
        goes_up = func in _FROM_HOST and kwargs.get("device") is not None and not isinstance(args[0], Tensor)
        if func in _TO_HOST or func == Tensor.new_tensor or goes_up:
            self.reads.found(func.__name__)
        return func(*args, **kwargs)


class Launches(TorchDispatchMode):
    """Context in which operators are counted by name, views left out: on a GPU each launches a kernel or more."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and not func.overloadpacket.__name__.startswith("_record_function"):
            self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
