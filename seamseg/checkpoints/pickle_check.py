"""What the pickle of a snapshot may hold, checked step by step before `torch.load` builds any of it.

`torch.load(weights_only=True)` runs no foreign code, but believes what a pickle states: storages longer than the data
that the file has for them (which it would read past the end of), tensors and byte arrays of any size made of nothing.
This follows the same instructions on stand-ins and accepts what the state of networks and optimizers is made of: plain
data, dense tensors within their storages, scalars and arrays of numpy.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import IO, Any

from seamseg.utils.limits import FREE_BYTES

PICKLE_BYTES = 4 << 20
"""Largest pickle, without the storages: a hundred bytes a tensor."""

_ITEM_SIZES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
_ITEM_SIZES |= {"Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_STORAGE = re.compile(r"torch(?:\.cuda)? (\w+)Storage")
_CONSTANT = re.compile(r"torch (bool|b?float\d+(_\w+)?|u?int\d+|complex\d+)|numpy ndarray|numpy\.dtypes \w+DType")
_NUMPY_TYPE = re.compile(r"[<>=|]?([biufc]\d{1,2}|\?)")
_MULTIARRAY = r"numpy\.(core|_core)\.multiarray"


class RefusedPickle(Exception):
    """The message is what is wrong with it: a phrase for the end of a line."""


class CodeInPickle(Exception):
    """The pickle names something that is no part of snapshots; the message is its name."""


class _Stand:
    """In the place of an object: what it is, and whether a list, set or dict has tensors in it."""

    __slots__ = ("kind", "of", "tensors")

    def __init__(self, kind: str, of: Any = None) -> None:
        self.kind = kind
        self.of = of
        self.tensors = False


_MARK = _Stand("mark")
_DATA, _BYTES = _Stand("data"), _Stand("bytes")


class LimitedStream:
    """Reads a file from where it is, at most so many bytes.

    Parameters
    ----------
    file : to read from
    limit : bytes; RefusedPickle beyond them
    """

    def __init__(self, file: IO[bytes], limit: int = PICKLE_BYTES) -> None:
        self._file, self._left = file, limit
        self.tell = file.tell

    def read(self, count: int) -> bytes:
        """As of a file."""
        return self._counted(self._file.read(min(count, self._left + 1)))

    def readline(self) -> bytes:
        """As of a file."""
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise RefusedPickle("its pickle is larger than 4 MiB, the limit without the tensors")
        return data


def check_pickle(stream: Any, storage: Callable[[Any, int], None]) -> Any:
    """Follow a pickle to its end. Gives what it holds, if that is a number or a text.

    Parameters
    ----------
    stream : with `read` and `readline`; is left behind the pickle
    storage : called with the key and the bytes of each storage that is asked for; raises RefusedPickle

    Raises
    ------
    CodeInPickle
        if it names something that is no part of a snapshot
    RefusedPickle
        if it asks for what the file does not hold
    ValueError, IndexError, KeyError
        if it is no pickle
    """
    machine = _Machine(storage)
    for opcode, argument, _ in pickletools.genops(stream):
        machine.step(opcode.name, argument)
    return machine.stack[-1]


class _Machine:
    def __init__(self, storage: Callable[[Any, int], None]) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storage = storage
        self.expanded = 0

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING"):
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}.get(name, argument))
        elif name in ("EMPTY_LIST", "EMPTY_SET", "EMPTY_DICT"):
            stack.append(_Stand("items"))
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE"):
            self._tuple(name)
        elif name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"):
            self._fill(name)
        elif name == "GLOBAL":
            stack.append(_global(argument))
        elif name == "BINPERSID":
            stack.append(self._persistent(stack.pop()))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments = stack.pop()
            stack.append(_call(stack.pop(), arguments))
            self._count_expanded(stack[-1])
        elif name == "BUILD":
            _build(stack, stack.pop())
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"the instruction {name}")

    def _count_expanded(self, made: _Stand) -> None:
        # expanded tensors are a normal thing to save, but what copies them must not need far more than the file
        if made.kind == "tensor" and made.of and made.of[0] > made.of[1]:
            self.expanded += made.of[0]
            if self.expanded > FREE_BYTES:
                raise RefusedPickle(f"a tensor of {made.of[0]} bytes has a storage of {made.of[1]}")

    def _since_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _tuple(self, name: str) -> None:
        if name == "TUPLE":
            self.stack.append(tuple(self._since_mark()))
        else:
            count = 0 if name == "EMPTY_TUPLE" else int(name[-1])
            items = [self.stack.pop() for _ in range(count)]
            self.stack.append(tuple(items[::-1]))

    def _fill(self, name: str) -> None:
        count = {"APPEND": 1, "SETITEM": 2}.get(name)
        items = self._since_mark() if count is None else [self.stack.pop() for _ in range(count)][::-1]
        target = self.stack[-1]
        if not isinstance(target, _Stand) or target.kind not in ("items", "dict"):
            raise RefusedPickle("its pickle puts items into what holds none")
        if name.startswith("SETITEM"):
            if len(items) % 2 or not all(map(_is_key, items[::2])):
                raise RefusedPickle("its pickle has keys that are neither names nor numbers")
        else:
            target.tensors = target.tensors or any(_is(item, "tensor") for item in items)

    def _persistent(self, identity: Any) -> _Stand:
        # (storage, type, key, location, number of items), and in old files a view
        if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
            raise RefusedPickle("its pickle asks for something else than storages")
        kind, key, _, count = identity[1:5]
        if not _is(kind, "storage type") or not isinstance(key, (str, int)) or not _is_size(count):
            raise RefusedPickle("its pickle asks for a storage without type, name or size")
        if len(identity) == 6 and identity[5] is not None:
            raise RefusedPickle("its storages are views of others")
        self.storage(key, count * kind.of)
        return _Stand("storage", (count * kind.of, kind.of))


def _global(name: str) -> _Stand:
    name = name.replace("__builtin__ ", "builtins ")
    if name == "torch.storage UntypedStorage":
        return _Stand("storage type", 1)
    storage = _STORAGE.fullmatch(name)
    if storage and storage[1] in _ITEM_SIZES:
        return _Stand("storage type", _ITEM_SIZES[storage[1]])
    if name in _CALLS or re.fullmatch(_MULTIARRAY + " (scalar|_reconstruct)", name):
        return _Stand("function", re.sub(_MULTIARRAY, "numpy", name))
    if _CONSTANT.fullmatch(name):
        return _Stand("constant", name)
    raise CodeInPickle(name.replace(" ", "."))


def _call(function: Any, arguments: Any) -> _Stand:
    if not _is(function, "function") or not isinstance(arguments, tuple):
        raise RefusedPickle("its pickle calls what is no function")
    made = _CALLS[function.of](arguments)
    if made is None:
        raise RefusedPickle(f"its pickle makes {function.of.replace(' ', '.')} of unusual arguments")
    return made


def _build(stack: list[Any], state: Any) -> None:
    target = stack[-1]
    if _is(target, "dict"):
        fits = _is(state, "items")
    elif _is(target, "numpy type"):
        fits = isinstance(state, tuple) and len(state) >= 8 and state[2:5] == (None,) * 3 and state[5:7] == (-1, -1)
    elif _is(target, "numpy array"):
        fits = isinstance(state, tuple) and len(state) == 5 and _is(state[2], "numpy type")
        fits = fits and isinstance(state[1], tuple) and all(map(_is_size, state[1]))
    else:
        fits = False
    if not fits:
        raise RefusedPickle("its pickle sets the state of what has none")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _Stand) and value.kind == kind


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_key(value: Any) -> bool:
    # the hash of tuples within tuples is computed without end
    plain = isinstance(value, tuple) and all(isinstance(v, (str, int, float)) for v in value)
    return value is None or isinstance(value, (str, int, float)) or plain or value in (_DATA, _BYTES)


def _container(kind: str) -> Callable[[tuple[Any, ...]], _Stand | None]:
    def make(arguments: tuple[Any, ...]) -> _Stand | None:
        # of a tensor it would take each row for an item
        plain = len(arguments) == 1 and _is(arguments[0], "items") and not arguments[0].tensors
        return _Stand(kind) if plain or not arguments else None

    return make


def _tensor(arguments: tuple[Any, ...], item: int = 0) -> _Stand | None:
    if len(arguments) < 4 or not _is(arguments[0], "storage"):
        return None
    (storage_bytes, item_of_storage), offset, size, stride = arguments[0].of, *arguments[1:4]
    item = item or item_of_storage
    sizes = [offset, *size, *stride] if isinstance(size, tuple) and isinstance(stride, tuple) else []
    if not sizes or len(size) != len(stride) or len(size) > 64 or not all(map(_is_size, sizes)):
        return None
    count, end = 1, offset + 1
    for extent, step in zip(size, stride):
        count *= extent
        end += (extent - 1) * step
    if count and end * item > storage_bytes:
        raise RefusedPickle(f"a tensor of {end * item} bytes has a storage of {storage_bytes}")
    return _Stand("tensor", (count * item, storage_bytes))


def _tensor_of_type(arguments: tuple[Any, ...]) -> _Stand | None:
    """Of a dtype that has no storage type of its own, such as uint16 and float8."""
    if len(arguments) not in (7, 8) or not _is(arguments[6], "constant") or arguments[7:] not in ((), (None,)):
        return None
    dtype = re.fullmatch(r"torch [a-z]+(\d+).*", arguments[6].of)
    return _tensor(arguments, max(int(dtype[1]) // 8, 1)) if dtype else None


def _first(kind: str, made: str) -> Callable[[tuple[Any, ...]], _Stand | None]:
    return lambda arguments: _Stand(made) if arguments and _is(arguments[0], kind) else None


def _numbers(arguments: tuple[Any, ...]) -> _Stand | None:
    values = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else arguments
    return _DATA if all(type(value) in (int, float) for value in values) else None


def _text(arguments: tuple[Any, ...]) -> _Stand | None:
    fits = arguments and isinstance(arguments[0], str)
    return _BYTES if fits and all(a in ("latin1", "latin-1") for a in arguments[1:]) else None


def _byte_array(arguments: tuple[Any, ...]) -> _Stand | None:
    # of a number it would make so many zeros; before Python 3.8 it was written as text
    return _DATA if arguments in ((), (_BYTES,)) or _text(arguments) else None


def _device(arguments: tuple[Any, ...]) -> _Stand | None:
    return _DATA if arguments and all(isinstance(a, (str, int)) for a in arguments) else None


def _numpy_type(arguments: tuple[Any, ...]) -> _Stand | None:
    fits = arguments and isinstance(arguments[0], str) and _NUMPY_TYPE.fullmatch(arguments[0])
    return _Stand("numpy type") if fits else None


def _numpy_scalar(arguments: tuple[Any, ...]) -> _Stand | None:
    fits = len(arguments) == 2 and _is(arguments[0], "numpy type")
    return _DATA if fits and (arguments[1] is _BYTES or isinstance(arguments[1], str)) else None


def _numpy_array(arguments: tuple[Any, ...]) -> _Stand | None:
    fits = len(arguments) == 3 and _is(arguments[0], "constant") and arguments[1] == (0,)
    return _Stand("numpy array") if fits and arguments[0].of == "numpy ndarray" else None


_CALLS: dict[str, Callable[[tuple[Any, ...]], _Stand | None]] = {
    "collections OrderedDict": _container("dict"),
    "collections Counter": _container("dict"),
    "builtins set": _container("set"),
    "builtins complex": _numbers,
    "builtins bytearray": _byte_array,
    "_codecs encode": _text,
    "torch Size": _numbers,
    "torch device": _device,
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor_of_type,
    "torch._utils _rebuild_parameter": _first("tensor", "tensor"),
    "torch.nn.parameter Parameter": _first("tensor", "tensor"),
    "numpy dtype": _numpy_type,
    "numpy scalar": _numpy_scalar,
    "numpy _reconstruct": _numpy_array,
}
"""What may be called, and what that gives: a stand-in, or None if such arguments are not usual."""
