"""Nodes of an ONNX graph and what is known of their tensors, for the rules of the operators.

A rule goes from the inputs of a node to the sizes of its outputs, and so bounds what an engine allocates. Small whole
numbers are known, too, since graphs calculate shapes with them. Where a size depends on the image, as the number of
boxes that a suppression keeps, it is the largest possible one; a shape that is calculated from such a size, or from
pixels, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.formats.onnx_file import FLOATS, ITEM_BYTES, Node, Tensor
from seamseg.formats.protobuf import RefusedFile

VALUES = 1024
"""Most numbers of a tensor that are computed."""
LARGEST = 1 << 31
"""Computed numbers are below: no sum or product of two overflows."""
_RANK = 8
_BLOCK = 16
"""Channels of maps are rounded up to it: engines store them in vectors."""
_MOST = 1 << 48
"""Most elements of a tensor, so that products stay exact; the limits of the memory are far below."""


Bounds = tuple[int, int]
"""Least and largest whole number."""


@dataclass(frozen=True)
class Sized:
    """What is known of a tensor.

    Attributes
    ----------
    shape : its sides, or bounds of them
    dtype : number of its type in ONNX
    exact : whether the sides are known; otherwise they are at most those of `shape`
    value : its few numbers if they do not depend on pixels; None if unknown
    constant : whether it does not depend on the inputs, only on their shapes: engines may compute it when they open a
        file, and keep it
    bounds : bounds of whole numbers; None if they are those of the type
    columns : bounds of each column, of a suppression
    """

    shape: tuple[int, ...]
    dtype: int
    exact: bool = True
    value: np.ndarray | None = None
    constant: bool = False
    bounds: Bounds | None = None
    columns: tuple[Bounds, ...] | None = None

    @property
    def count(self) -> int:
        """Maximum number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Maximum number of bytes."""
        shape = self.shape
        channels = -(-shape[1] // _BLOCK) * _BLOCK if len(shape) == 4 and self.dtype in FLOATS else 0
        return ITEM_BYTES[self.dtype] * (shape[0] * channels * shape[2] * shape[3] if channels else math.prod(shape))

    @staticmethod
    def of(tensor: Tensor) -> Sized:
        """Return a weight."""
        few = tensor.value is not None and tensor.value.size <= VALUES
        return Sized(tensor.shape, tensor.dtype, True, tensor.value if few else None, True)


class Call:
    """A node with its inputs, for the rule of its operator.

    Attributes
    ----------
    node : the node
    inputs : None for those that are left out
    work : multiplications and the like, besides one an element of the outputs
    scratch : bytes that an engine needs while it runs the node
    """

    def __init__(self, node: Node, inputs: Sequence[Sized | None]) -> None:
        self.node = node
        self.inputs = inputs
        self.work = 0
        self.scratch = 0

    def __getitem__(self, index: int) -> Sized:
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.wrong(f"has no input {index}")
        return found

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wrong(self, problem: str) -> RefusedFile:
        """Return the error for the node."""
        return RefusedFile(f"{self.node.op} ({self.node.outputs[0]:.60}) {problem}")

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the type of its default value."""
        value = self.node.attributes.get(name, default)
        if type(value) is not type(default):
            raise self.wrong(f"has {name} of another type")
        return value

    def numbers(self, index: int) -> list[int]:
        """Return the whole numbers of an input, which decides a size."""
        value = self[index].value
        if value is None:
            raise self.wrong("has a size that depends on the image, or that cannot be followed")
        found = value.reshape(-1).tolist()
        if value.dtype.kind not in "iu" and not all(isinstance(v, float) and v.is_integer() for v in found):
            raise self.wrong("has sizes that are no whole numbers")
        return [int(v) for v in found]

    def number(self, index: int) -> int:
        """Return the whole number of an input."""
        found = self.numbers(index)
        if len(found) != 1:
            raise self.wrong(f"has {len(found)} values for one")
        return found[0]

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.wrong(f"has axis {axis} of {rank}")
        return axis % rank

    def axes(self, index: int, rank: int) -> list[int] | None:
        """Return axes, an input since operators of version 18; None if they are left out."""
        if not self.has(index):
            return None
        found = [self.axis(axis, rank) for axis in self.numbers(index)]
        if len(set(found)) != len(found):
            raise self.wrong("has an axis twice")
        return found

    def broadcast(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of element-wise results."""
        rank = max(map(len, shapes))
        padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        exact = all(x is None or x.exact for x in self.inputs)
        sides = []
        for column in zip(*padded):
            wanted = {side for side in column if side != 1}
            if len(wanted) > 1 and exact:
                raise self.wrong(f"combines sides {', '.join(map(str, sorted(wanted)))}")
            sides.append(max(wanted, default=1))
        return tuple(sides)

    def made(self, shape: Sequence[int], dtype: int | None = None, exact: bool = True) -> Sized:
        """Return an output, by default of the type of the first input."""
        sides = tuple(shape)
        if min(sides, default=0) < 0 or max(sides, default=0) > _MOST or len(sides) > _RANK or math.prod(sides) > _MOST:
            raise self.wrong(f"has a result of the shape {list(sides)!s:.60}")
        exact = exact and all(x is None or x.exact for x in self.inputs)
        return Sized(sides, self[0].dtype if dtype is None else dtype, exact)


Rule = Callable[[Call], list[Sized]]
