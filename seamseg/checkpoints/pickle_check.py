"""Check the pickle of a snapshot, instruction by instruction, before `torch.load` creates any objects.

`torch.load(weights_only=True)` runs no foreign code, but does not verify the sizes in a pickle: storages longer than
their data in the file (it would read past the end), tensors and byte arrays of any size without data. This module
executes the same instructions on placeholders and accepts only the contents of network and optimizer states: plain
data, dense tensors within their storages, scalars and arrays of numpy.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import IO, Any

from seamseg.utils.limits import FREE_BYTES

PICKLE_BYTES = 4 << 20
"""Largest pickle, without the storages: a tensor takes a hundred bytes."""
MEMORY_BYTES = 256 << 20
"""Limit of the memory of all objects but the storages: those of a tensor take two KiB."""

_ITEM_SIZES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
_ITEM_SIZES |= {"Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_STORAGE = re.compile(r"torch(?:\.cuda)? (\w+)Storage")
_CONSTANT = re.compile(r"torch (bool|b?float\d+(_\w+)?|u?int\d+|complex\d+)|numpy ndarray|numpy\.dtypes \w+DType")
_NUMPY_TYPE = re.compile(r"[<>=|]?([biufc]\d{1,2}|\?)")
_MULTIARRAY = r"numpy\.(core|_core)\.multiarray"


class RefusedPickle(Exception):
    """A pickle with unsupported contents; the message is the reason, to be appended to the name of the file."""


class CodeInPickle(Exception):
    """A pickle that refers to a function or class that snapshots do not contain; the message is its name."""


class _Placeholder:
    """Stands for an object.

    Attributes
    ----------
    kind, of : kind of the object, and details that depend on the kind
    size : bytes of a copy
    tensors : whether a list, set or dict contains tensors
    similar : number of items of a list, or keys of a set or dict, whose hashes a file can make equal
    begins_with_key : whether the first item of a list can be a key
    entries : whether all items of a list can be keys, or are lists that begin with one
    """

    __slots__ = ("begins_with_key", "entries", "kind", "of", "similar", "size", "tensors")

    def __init__(self, kind: str, of: Any = None) -> None:
        self.kind = kind
        self.of = of
        self.size = self.similar = 0
        self.tensors = self.begins_with_key = False
        self.entries = True


_MARK = _Placeholder("mark")


class LimitedStream:
    """Reads a file from its current position; RefusedPickle after :data:`PICKLE_BYTES`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, PICKLE_BYTES
        self.tell = file.tell

    def read(self, count: int) -> bytes:
        """Read bytes, as `file.read`."""
        return self._counted(self._file.read(min(count, self._left + 1)))

    def readline(self) -> bytes:
        """Read a line, as `file.readline`."""
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise RefusedPickle("its pickle is larger than 4 MiB, the limit without the tensors")
        return data


def check_pickle(stream: Any, storage: Callable[[Any, int], None]) -> Any:
    """Check a pickle to its end and return its content if that is a number or a string.

    Parameters
    ----------
    stream : stream with `read` and `readline`; positioned after the pickle on return
    storage : called with key and size in bytes of each storage that is loaded; raises RefusedPickle

    Raises
    ------
    CodeInPickle
        if it refers to functions or classes that snapshots do not contain
    RefusedPickle
        if its sizes do not fit the file, or its contents are not supported
    ValueError, IndexError, KeyError
        if it is not a pickle
    """
    machine = _Machine(storage)
    for opcode, argument, _ in pickletools.genops(stream):
        machine.step(opcode.name, argument)
    return machine.stack[-1]


class _Machine:
    """A pickle machine that computes with placeholders.

    Parameters
    ----------
    storage : see :func:`check_pickle`
    """

    def __init__(self, storage: Callable[[Any, int], None]) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storage = storage
        self.expanded = self.made = 0

    def step(self, name: str, argument: Any) -> None:
        """Execute an instruction."""
        if name not in _INSTRUCTIONS:
            raise ValueError(f"the instruction {name}")
        self.charge(_SET_BYTES if name == "EMPTY_SET" else _OBJECT_BYTES + _size(argument))
        _INSTRUCTIONS[name](self, argument)

    def charge(self, size: int) -> None:
        """Count the memory, and with it the time, of what the unpickler makes."""
        self.made += size
        if self.made > MEMORY_BYTES:
            raise RefusedPickle("the objects in its pickle take more than 256 MiB without the tensors")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def pop(self, count: int) -> list[Any]:
        return [self.stack.pop() for _ in range(count)][::-1]

    def pop_to_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def append(self, items: list[Any]) -> None:
        target = self._target()
        # tuples are searched
        self.charge(sum(_size(item) for item in items if isinstance(item, tuple)))
        if not target.size:
            target.begins_with_key = any(map(_is_key, items[:1]))
        target.entries = target.entries and all(map(_is_entry, items))
        self._add(target, len(items))
        target.similar += len(items) - sum(map(_is_distinct, items))
        target.tensors = target.tensors or any(_is(item, "tensor") for item in items)

    def set_items(self, items: list[Any]) -> None:
        target, keys = self._target(), items[::2]
        self._add(target, len(items))
        # each is hashed
        self.charge(sum(map(_size, keys)))
        if len(items) % 2 or not all(map(_is_key, keys)):
            raise RefusedPickle("its pickle has keys that are neither names nor numbers")
        before = target.similar
        target.similar += len(keys) - sum(map(_is_distinct, keys))
        self.charge(_COMPARISON_BYTES * (target.similar**2 - before**2))

    def call(self, argument: None) -> None:
        function, arguments = self.pop(2)
        copied = _size(arguments)
        self.charge(_CALL_BYTES + copied)
        copied += sum(map(_size, arguments)) if isinstance(arguments, tuple) else 0
        self.charge(copied)
        made = _call(function, arguments)
        made.size = copied
        if made.kind in ("dict", "set") and arguments:
            made.similar = arguments[0].similar
            self.charge(_COMPARISON_BYTES * made.similar**2)
        self.push(made)
        # expanded tensors are common, but copying them must not need far more memory than the file
        if made.kind == "tensor" and made.of and made.of[0] > made.of[1]:
            self.expanded += made.of[0]
            if self.expanded > FREE_BYTES:
                raise RefusedPickle(f"a tensor of {made.of[0]} bytes has a storage of {made.of[1]}")

    def build(self, argument: None) -> None:
        state = self.stack.pop()
        self.charge(_size(state) + sum(map(_size, state) if isinstance(state, tuple) else ()))
        self.charge(_COMPARISON_BYTES * getattr(state, "similar", 0) ** 2)
        _build(self.stack[-1], state)

    def load_storage(self, argument: None) -> None:
        # (storage, type, key, location, number of items), and a view in old files
        identity = self.stack.pop()
        if not isinstance(identity, tuple) or len(identity) not in (5, 6) or identity[0] != "storage":
            raise RefusedPickle("its pickle loads something else than storages")
        kind, key, _, count = identity[1:5]
        if not _is(kind, "storage type") or not isinstance(key, (str, int)) or not _is_size(count):
            raise RefusedPickle("its pickle loads a storage without type, name or size")
        if len(identity) == 6 and identity[5] is not None:
            raise RefusedPickle("its storages are views of others")
        self.storage(key, count * kind.of)
        self.push(_Placeholder("storage", (count * kind.of, kind.of)))

    def _add(self, target: _Placeholder, count: int) -> None:
        self.charge(_ITEM_BYTES * count)
        target.size += _ITEM_BYTES * count

    def _target(self) -> _Placeholder:
        target = self.stack[-1]
        if not isinstance(target, _Placeholder) or target.kind not in ("items", "dict"):
            raise RefusedPickle("its pickle adds items to an object that is no list, set or dict")
        return target


_OBJECT_BYTES, _ITEM_BYTES, _SET_BYTES, _CALL_BYTES = 64, 100, 216, 512
"""Bytes of most objects, an item of a dict, an empty set, and what functions make besides their arguments."""
_COMPARISON_BYTES = 8
"""Stands for the time in which a key is compared with each of the same hash, 0.1 us for two of them."""


def _size(value: Any) -> int:
    """Return the memory of a copy of a value, without that of its items."""
    if isinstance(value, _Placeholder):
        return value.size
    return 4 * len(value) if isinstance(value, (str, bytes)) else 8 * len(value) if isinstance(value, tuple) else 0


def _instructions() -> dict[str, Callable[[_Machine, Any], None]]:
    push_argument = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING", "BINFLOAT")
    return {
        **dict.fromkeys(push_argument, _Machine.push),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.get),
        "MARK": lambda machine, _: machine.push(_MARK),
        "NONE": lambda machine, _: machine.push(None),
        "NEWTRUE": lambda machine, _: machine.push(True),
        "NEWFALSE": lambda machine, _: machine.push(False),
        **dict.fromkeys(
            ("EMPTY_LIST", "EMPTY_SET", "EMPTY_DICT"), lambda machine, _: machine.push(_Placeholder("items"))
        ),
        "EMPTY_TUPLE": lambda machine, _: machine.push(()),
        "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop(1))),
        "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop(2))),
        "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop(3))),
        "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
        "APPEND": lambda machine, _: machine.append(machine.pop(1)),
        "APPENDS": lambda machine, _: machine.append(machine.pop_to_mark()),
        "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
        "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
        "GLOBAL": lambda machine, name: machine.push(_global(name)),
        "BINPERSID": _Machine.load_storage,
        **dict.fromkeys(("REDUCE", "NEWOBJ"), _Machine.call),
        "BUILD": _Machine.build,
        **dict.fromkeys(("PROTO", "STOP"), lambda machine, _: None),
    }


_INSTRUCTIONS = _instructions()
"""The supported instructions: all that `torch.save` writes for snapshots."""


def _global(name: str) -> _Placeholder:
    name = name.replace("__builtin__ ", "builtins ")
    if name == "torch.storage UntypedStorage":
        return _Placeholder("storage type", 1)
    storage = _STORAGE.fullmatch(name)
    if storage and storage[1] in _ITEM_SIZES:
        return _Placeholder("storage type", _ITEM_SIZES[storage[1]])
    if name in _CALLS or re.fullmatch(_MULTIARRAY + " (scalar|_reconstruct)", name):
        return _Placeholder("function", re.sub(_MULTIARRAY, "numpy", name))
    if _CONSTANT.fullmatch(name):
        return _Placeholder("constant", name)
    raise CodeInPickle(name.replace(" ", "."))


def _call(function: Any, arguments: Any) -> _Placeholder:
    if not _is(function, "function") or not isinstance(arguments, tuple):
        raise RefusedPickle("its pickle calls an object that is no function")
    made = _CALLS[function.of](arguments)
    if made is None:
        raise RefusedPickle(f"its pickle calls {function.of.replace(' ', '.')} with unsupported arguments")
    return made


def _build(target: Any, state: Any) -> None:
    if _is(target, "dict"):
        fits = _is(state, "items") and state.entries
    elif _is(target, "numpy type"):
        fits = isinstance(state, tuple) and len(state) >= 8 and state[2:5] == (None,) * 3 and state[5:7] == (-1, -1)
    elif _is(target, "numpy array"):
        fits = isinstance(state, tuple) and len(state) == 5 and _is(state[2], "numpy type")
        fits = fits and isinstance(state[1], tuple) and all(map(_is_size, state[1]))
    else:
        fits = False
    if not fits:
        raise RefusedPickle("its pickle sets the state of an object without state")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _Placeholder) and value.kind == kind


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_key(value: Any) -> bool:
    # computing the hash of deeply nested tuples may take unbounded time
    plain = isinstance(value, tuple) and all(map(_is_plain, value))
    return value is None or _is_plain(value) or plain or _is(value, "data") or _is(value, "bytes")


def _is_entry(value: Any) -> bool:
    return _is_key(value) or (_is(value, "items") and value.begins_with_key)


def _is_plain(value: Any) -> bool:
    # larger integers may have equal hashes
    return isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 1 << 60)


def _is_distinct(value: Any) -> bool:
    # the hash of a tuple or complex number is made of those of its items; that of a text differs between processes
    return value is None or _is_plain(value) or _is(value, "bytes")


def _container(kind: str) -> Callable[[tuple[Any, ...]], _Placeholder | None]:
    def make(arguments: tuple[Any, ...]) -> _Placeholder | None:
        # a tensor would be expanded row by row; items are hashed
        plain = len(arguments) == 1 and _is(arguments[0], "items") and not arguments[0].tensors
        plain = plain and arguments[0].entries
        return _Placeholder(kind) if plain or not arguments else None

    return make


def _tensor(arguments: tuple[Any, ...], item: int = 0) -> _Placeholder | None:
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
    return _Placeholder("tensor", (count * item, storage_bytes))


def _tensor_of_type(arguments: tuple[Any, ...]) -> _Placeholder | None:
    """Check a tensor of a dtype without a storage type, such as uint16 and float8."""
    if len(arguments) not in (7, 8) or not _is(arguments[6], "constant") or arguments[7:] not in ((), (None,)):
        return None
    dtype = re.fullmatch(r"torch [a-z]+(\d+).*", arguments[6].of)
    return _tensor(arguments, max(int(dtype[1]) // 8, 1)) if dtype else None


def _first(kind: str, made: str) -> Callable[[tuple[Any, ...]], _Placeholder | None]:
    return lambda arguments: _Placeholder(made) if arguments and _is(arguments[0], kind) else None


def _numbers(arguments: tuple[Any, ...]) -> _Placeholder | None:
    values = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else arguments
    return _Placeholder("data") if all(type(value) in (int, float) for value in values) else None


def _text(arguments: tuple[Any, ...]) -> _Placeholder | None:
    fits = arguments and isinstance(arguments[0], str)
    return _Placeholder("bytes") if fits and all(a in ("latin1", "latin-1") for a in arguments[1:]) else None


def _byte_array(arguments: tuple[Any, ...]) -> _Placeholder | None:
    # a number would allocate so many zeros; before Python 3.8 the content was a string
    fits = not arguments or (len(arguments) == 1 and _is(arguments[0], "bytes")) or _text(arguments)
    return _Placeholder("data") if fits else None


def _device(arguments: tuple[Any, ...]) -> _Placeholder | None:
    return _Placeholder("data") if arguments and all(isinstance(a, (str, int)) for a in arguments) else None


def _numpy_type(arguments: tuple[Any, ...]) -> _Placeholder | None:
    fits = arguments and isinstance(arguments[0], str) and _NUMPY_TYPE.fullmatch(arguments[0])
    return _Placeholder("numpy type") if fits else None


def _numpy_scalar(arguments: tuple[Any, ...]) -> _Placeholder | None:
    fits = len(arguments) == 2 and _is(arguments[0], "numpy type")
    fits = fits and (_is(arguments[1], "bytes") or isinstance(arguments[1], str))
    return _Placeholder("data") if fits else None


def _numpy_array(arguments: tuple[Any, ...]) -> _Placeholder | None:
    fits = len(arguments) == 3 and _is(arguments[0], "constant") and arguments[1] == (0,)
    return _Placeholder("numpy array") if fits and arguments[0].of == "numpy ndarray" else None


_CALLS: dict[str, Callable[[tuple[Any, ...]], _Placeholder | None]] = {
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
"""The functions that may be called; each returns a placeholder, or None for unsupported arguments."""
