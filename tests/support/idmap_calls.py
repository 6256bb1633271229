"""The functions of id maps by name, with flat arguments, also in processes of the emulator; and with and without C."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from seamseg.maps.idmaps import library, segments, upsampled
from seamseg.maps.idmaps.histogram import joint_histogram as joint_histogram


def _with_sizes(function: Callable[..., Any], arrays: int) -> Callable[..., Any]:
    """Take the sizes behind some arrays as single numbers."""
    return lambda *given: function(*given[:arrays], *zip(given[arrays::2], given[arrays + 1 :: 2]))


def by_c_and_numpy(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """The result of the C library, and that of numpy."""
    with mock.patch.object(library, "functions", None):
        plain = function(*arguments)
    return function(*arguments), plain


assert library.functions is not None, f"no library: {library.state}"
best_masks = _with_sizes(upsampled.best_masks, 2)
best_classes = _with_sizes(upsampled.best_classes, 1)
mask_boxes = _with_sizes(upsampled.mask_boxes, 1)
overlay, png_rows = segments.overlay, segments.png_rows
