"""Check an untrusted ONNX file before an engine reads it: operators, sizes of all tensors, memory and work."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from seamseg.formats.exported import DYNAMIC_SIDES, METADATA_KEY, ExportedMetadata
from seamseg.formats.onnx_file import DTYPES, INT64, OnnxGraph, Stated, read_onnx
from seamseg.formats.protobuf import DamagedFile, RefusedFile
from seamseg.inference.onnx_graph.bounds import bounded
from seamseg.inference.onnx_graph.call import Call, Sized
from seamseg.inference.onnx_graph.layers import LAYERS
from seamseg.inference.onnx_graph.shapes import SHAPES
from seamseg.inference.onnx_graph.values import computed
from seamseg.utils.errors import InputError
from seamseg.utils.limits import GIB, MIB, format_bytes

_OPSETS = range(18, 24)
"""Versions of the operators whose rules are known."""
_FLOAT, _UINT8 = 1, 2
_RULES = {**SHAPES, **LAYERS}
Shapes = Mapping[str, tuple[int, ...]]
Result = TypeVar("Result")


_BASE_BYTES = 256 * MIB
_PIXEL_BYTES, _CLASS_BYTES = 512, 16
"""For a pixel of the input, and for each class of a pixel: logits of all classes have the size of the input."""
_FREE_PIXEL_BYTES, _PIXEL_RATIO = 2 * GIB, 1000
"""What all pixels may need in a small file, and times the size of the file: few weights do not make 150 classes."""
_RATIO = 100
"""Times the size of the file: maps of larger networks have more channels, and attention takes the square of pixels."""
_BASE_WORK, _PIXEL_WORK = 1 << 40, 1 << 22


@dataclass(frozen=True)
class Needs:
    """Upper bounds of what a graph needs for an input; limits of it have the same attributes.

    Attributes
    ----------
    memory : bytes of all tensors that exist at a time, without the weights, in each order in which engines run nodes.
        Those that do not depend on the pixels exist all the time: engines compute them when they open a file
    work : multiplications and the like
    """

    memory: int
    work: int

    def check(self, limits: Needs, pixels: int) -> None:
        """Raise RefusedFile if more is needed than the limits of an input of some pixels."""
        if self.memory > limits.memory:
            found, limit = format_bytes(self.memory), format_bytes(limits.memory)
            raise RefusedFile(f"it needs tensors of {found} for {pixels} pixels, the limit is {limit}")
        if self.work > limits.work:
            raise RefusedFile(
                f"it needs {self.work:.1e} multiplications for {pixels} pixels, the limit is {limits.work:.1e}"
            )


def limits_of(pixels: int, classes: int, file_bytes: int) -> Needs:
    """Return the limits for an input of some pixels, of a network with some classes in a file of some bytes."""
    most = _FREE_PIXEL_BYTES + _PIXEL_RATIO * file_bytes
    of_pixels = min(pixels * (_PIXEL_BYTES + _CLASS_BYTES * classes), most)
    return Needs(_BASE_BYTES + of_pixels + _RATIO * file_bytes, _BASE_WORK + pixels * _PIXEL_WORK)


class CheckedGraph:
    """The graph of a file, which an engine may open, and run for inputs whose shapes are accepted.

    Parameters
    ----------
    path : path of the file

    Attributes
    ----------
    exported : what the file states about its network
    outputs : types and shapes by name, at the size of the file or the smallest one; sides of -1 are not known
    memory_limit : bytes, of the largest inputs: those of the size of the file, or of the largest that it documents

    Raises
    ------
    InputError
        if the file is not an ONNX file, was not written by `seamseg export`, or has operators or sizes that no exported
        network has
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._accepted: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        self._graph = self._refusing(lambda: read_onnx(path))
        text = self._graph.metadata.get(METADATA_KEY)
        if text is None:
            raise InputError(f"{path}: holds no metadata of seamseg: it was not written by `seamseg export`")
        self.exported = ExportedMetadata.from_json(text, str(path))
        self._bytes = path.stat().st_size
        self._refusing(lambda: _check_nodes(self._graph))
        self._orders = _orders(self._graph)
        least, most = (_shapes(self.exported, place) for place in (0, 1))
        known = self._refusing(lambda: self._checked(least))
        # bfloat16 is no type of numpy, and none of outputs
        self.outputs = {
            name: (DTYPES.get(x.dtype, np.dtype("V2")), x.shape if x.exact else (-1,) * len(x.shape))
            for name, x in ((name, known[name]) for name in self._graph.outputs)
        }
        self.memory_limit = self._limits(most).memory

    def check(self, shapes: Shapes) -> None:
        """Raise InputError if the graph needs too much for inputs of these shapes, or has no such inputs."""
        key = tuple(sorted(shapes.items()))
        if key not in self._accepted:
            self._refusing(lambda: self._checked(shapes))
            self._accepted.add(key)

    def _checked(self, shapes: Shapes) -> dict[str, Sized]:
        """Return all tensors; RefusedFile if the graph needs too much."""
        known, needs = self._follow(shapes)
        needs.check(self._limits(shapes), _pixels(shapes))
        return known

    def _limits(self, shapes: Shapes) -> Needs:
        return limits_of(_pixels(shapes), self.exported.metadata.num_classes, self._bytes)

    def tensors(self, shapes: Shapes) -> dict[str, Sized]:
        """Return what is known of all tensors, by name; errors as of :meth:`needs`."""
        return self._follow(shapes)[0]

    def needs(self, shapes: Shapes) -> Needs:
        """Return what the graph needs for inputs of these shapes.

        Raises
        ------
        RefusedFile
            if that cannot be bounded
        """
        return self._follow(shapes)[1]

    def _follow(self, shapes: Shapes) -> tuple[dict[str, Sized], Needs]:
        """Return all tensors by name, and what is needed; see :meth:`needs`."""
        image = _FLOAT if self.exported.kind == "classification" else _UINT8
        if set(self._graph.inputs) != set(shapes):
            raise RefusedFile(f"it has the inputs {', '.join(self._graph.inputs)!s:.60}")
        known = {name: Sized.of(tensor) for name, tensor in self._graph.weights.items()}
        known |= {name: Sized(shape, image if name == "image" else INT64) for name, shape in shapes.items()}
        steps: list[tuple[int, int]] = []
        work = 0
        for node in self._graph.nodes:
            call = Call(node, [known[name] if name else None for name in node.inputs])
            made = _run(call)
            known |= zip(node.outputs, made)
            steps.append((sum(x.nbytes for x in made if not x.constant), call.scratch))
            work += call.work + sum(x.count for x in made)
        for stated in (self._graph.inputs, self._graph.outputs, self._graph.values):
            _compare(stated, known)
        made_here = (x for name, x in known.items() if name not in self._graph.weights)
        lasting = sum(x.nbytes for x in made_here if x.constant) + sum(known[name].nbytes for name in shapes)
        return known, Needs(lasting + max(order.memory(steps) for order in self._orders), work)

    def _refusing(self, function: Callable[[], Result]) -> Result:
        """Call a function, with errors that name the file."""
        try:
            return function()
        except DamagedFile as error:
            raise InputError(f"{self._path}: not an ONNX file, truncated, or of another version ({error})") from None
        except RefusedFile as error:
            raise InputError(f"{self._path}: refused, no network exports such a graph: {error}") from None
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror or error}") from None


def _pixels(shapes: Shapes) -> int:
    return math.prod(shapes["image"][-2:])


def _shapes(exported: ExportedMetadata, place: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs at the size of a file, or its smallest (0) or largest (1) one if it is free."""
    # a panorama may be longer, but no image has this side twice
    side = min(exported.free_sides[place], DYNAMIC_SIDES[1])
    image = (1, 3, *exported.padded_size((side, side)))
    return {"image": image} if exported.kind == "classification" else {"image": image, "size": (2,)}


def _run(call: Call) -> list[Sized]:
    """Return the results of a node."""
    node = call.node
    constant = all(x is None or x.constant for x in call.inputs)
    try:
        made = _RULES[node.op](call)
        if len(node.outputs) > len(made):
            raise call.wrong(f"has {len(node.outputs)} results")
        return [
            replace(
                x,
                value=computed(call, x) if x.value is None and len(made) == 1 else x.value,
                constant=x.constant or constant,
                bounds=bounded(call, index, x),
            )
            for index, x in enumerate(made[: len(node.outputs)])
        ]
    except RefusedFile:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError):
        # rules take the inputs that an operator needs for granted, and their ranks
        raise call.wrong("has inputs or attributes that do not fit") from None


def _check_nodes(graph: OnnxGraph) -> None:
    """Raise RefusedFile unless all operators are known, and each tensor is made once, before it is used."""
    if graph.opset not in _OPSETS:
        raise RefusedFile(f"its operators are of version {graph.opset}")
    known = {*graph.inputs, *graph.weights}
    if len(known) < len(graph.inputs) + len(graph.weights):
        raise RefusedFile("an input has a value")
    for node in graph.nodes:
        if node.op not in _RULES:
            raise RefusedFile(f"it has the operator {node.op!r:.60}")
        if not known.issuperset(name for name in node.inputs if name) or not node.outputs:
            raise RefusedFile(f"{node.op} uses a tensor that is not there yet, or makes none")
        for name in node.outputs:
            if name in known or not name:
                raise RefusedFile(f"two tensors are named {name!r:.60}")
            known.add(name)
    if not known.issuperset(graph.outputs):
        raise RefusedFile("an output is not computed")


def _compare(stated: Mapping[str, Stated], known: Mapping[str, Sized]) -> None:
    """Raise RefusedFile if a file states another type or shape than there is: an engine would believe it."""
    for name, (dtype, shape) in stated.items():
        found = known.get(name)
        if found is None:  # of a tensor that the exporter has removed
            continue
        if dtype != found.dtype:
            raise RefusedFile(f"it states another type for {name!r:.60}")
        if shape is None:
            continue
        wrong = len(shape) != len(found.shape) or any(
            side is not None and (side != most if found.exact else side > most)
            for side, most in zip(shape, found.shape)
        )
        if wrong:
            raise RefusedFile(f"it states the shape {shape!s:.40} for {name!r:.60}, which is {found.shape!s:.40}")


@dataclass(frozen=True)
class _Order:
    """An order of nodes, with those after whose turn the result of each is not used any more."""

    nodes: Sequence[int]
    freed: Sequence[Sequence[int]]

    def memory(self, steps: Sequence[tuple[int, int]]) -> int:
        """Return the bytes that are needed, from the bytes of the results of each node and of its scratch."""
        used = most = 0
        for place, index in enumerate(self.nodes):
            size, scratch = steps[index]
            used += size
            most = max(most, used + scratch)
            used -= sum(steps[done][0] for done in self.freed[place])
        return most


def _orders(graph: OnnxGraph) -> list[_Order]:
    """Return the orders in which engines run the nodes: as in the file, and back from the results in several ways."""
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
    sources = [[makers[name] for name in dict.fromkeys(node.inputs) if name in makers] for node in graph.nodes]
    kept = {makers[name] for name in graph.outputs if name in makers}
    by_number = [sorted(before) for before in sources]
    orders = [list(range(len(graph.nodes)))]
    for edges in (sources, by_number):
        orders += [_depth_first(edges, False), _depth_first(edges, True)]
    return [_Order(order, _freed(order, sources, kept)) for order in orders]


def _depth_first(sources: Sequence[Sequence[int]], backwards: bool) -> list[int]:
    """Return the nodes, each after all that it needs, depth first from those that no other needs."""
    used = {index for before in sources for index in before}
    stack = [(index, False) for index in range(len(sources)) if index not in used]
    stack, seen, order = stack[::-1] if backwards else stack, set[int](), list[int]()
    while stack:
        index, done = stack.pop()
        if done:
            order.append(index)
        elif index not in seen:
            seen.add(index)
            stack.append((index, True))
            before = sources[index]
            stack += [(other, False) for other in (before[::-1] if backwards else before) if other not in seen]
    return order


def _freed(order: Sequence[int], sources: Sequence[Sequence[int]], kept: set[int]) -> list[list[int]]:
    """Return which nodes' results are freed after each place of an order."""
    last = {}
    for place, index in enumerate(order):
        last[index] = place
        last.update(dict.fromkeys(sources[index], place))
    freed: list[list[int]] = [[] for _ in order]
    for index, place in last.items():
        if index not in kept:
            freed[place].append(index)
    return freed
