"""The C functions of `csrc/maps`, called through ctypes without the GIL.

Their callers, :mod:`.histogram`, :mod:`.id_runs`, :mod:`.segments` and :mod:`.upsampled`, check the arguments, so that
they never read outside of their arrays.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.utils.native import DISABLED, find, load_failure, warn_missing

_MESSAGE_SIZE = 200  # kMessageSize in csrc/maps/answer.h
_INT64, _POINTER, _INT32 = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
_UPSAMPLED = (_POINTER, *[_INT64] * 3, *[_POINTER] * 2)
"""Logits with their shape, and the axes of rows and columns."""

_CHECKED: dict[str, tuple[type, ...]] = {
    "begin_runs": (_INT64, _INT64),
    "add_rows": (_POINTER, _POINTER, _INT64, _POINTER),
    "joint_histogram": (_POINTER, _INT32, _POINTER, _INT32, _INT64, _POINTER),
    "joint_histogram_of_runs": (_POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64, _POINTER),
    "paste_masks": (
        *(_POINTER, _INT64, _INT64, _POINTER, _POINTER, _INT64, _INT64, _INT64),
        *(ctypes.c_double, _INT32, _POINTER),
    ),
    "paste_mask": (_POINTER, _POINTER, *[_INT64] * 4, _POINTER),
    "segments": (_POINTER, *[_INT64] * 3, _POINTER, _POINTER),
    "overlay": (_POINTER, _INT64, _INT64, _POINTER, _INT64, _INT64, *[_POINTER] * 4, _INT64, _INT32, _POINTER),
    "best_masks": (*_UPSAMPLED, _POINTER, _POINTER, _POINTER),
    "best_classes": (*_UPSAMPLED, _POINTER),
    "mask_boxes": (*_UPSAMPLED, _POINTER),
}
"""Arguments of the functions that return NULL for an error, but for the last one, the message."""
_UNCHECKED: dict[str, tuple[type, ...]] = {
    "paste_region": (_POINTER, *[_INT64] * 4, _POINTER),
    "count_classes": (_POINTER, _POINTER, _INT64, _POINTER),
    "fill_free": (_POINTER, _POINTER, _INT64, _POINTER),
    "png_rows": (_POINTER, _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER),
    "take_runs": (_POINTER, _POINTER, _POINTER),
    "take_pairs": (_POINTER, _POINTER, _POINTER),
}
"""Arguments of the functions without a result."""
_PUBLIC_NAMES = {"begin_runs": "decode_id_runs", "add_rows": "decode_id_runs", "segments": "areas_and_boxes"}
"""Names in messages that differ from those in C."""


def load(path: str | Path) -> dict[str, Any]:
    """Load a compiled library; OSError if it cannot be loaded, AttributeError if it is another library."""
    compiled, loaded = ctypes.CDLL(str(path)), {}
    for name, arguments in {**_CHECKED, **_UNCHECKED}.items():
        function = loaded[name] = getattr(compiled, f"seamseg_{name}")
        function.argtypes = [*arguments, _POINTER] if name in _CHECKED else list(arguments)
        function.restype = _POINTER if name in _CHECKED else None
    return loaded


def call(name: str, *arguments: Any) -> int:
    """Call a function of the library, which must be loaded; ValueError for invalid arguments.

    Arrays are passed as pointers, and copied before if they are not contiguous.
    """
    assert functions is not None, state
    arrays = [np.require(x, None, ("C", "A")) if isinstance(x, np.ndarray) else x for x in arguments]
    passed = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in arrays]
    if name in _UNCHECKED:
        functions[name](*passed)
        return 0
    message = ctypes.create_string_buffer(_MESSAGE_SIZE)
    result: int | None = functions[name](*passed, message)
    if result is None:
        raise ValueError(f"{_PUBLIC_NAMES.get(name, name)}: {message.value.decode()}")
    return result


functions: dict[str, Any] | None = None
"""The functions by name; None if there is no library, and :mod:`.reference` takes their place."""
state = DISABLED or "loaded"
"""Loaded, or the reason why the library is missing."""
if state == "loaded":
    try:
        functions = load(str(find("_maps").origin))
    except (ImportError, OSError, AttributeError) as error:
        state = load_failure("_maps", error)
        warn_missing("functions for maps of ids", state)
