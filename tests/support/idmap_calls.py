"""The functions of the C library of this process, called by name, also in processes of the emulator."""

from typing import Any

from seamseg.idmaps import images, library, upsampled


def _functions() -> library.Library:
    assert library.functions is not None, f"no library: {library.state}"
    return library.functions


def decode_id_runs(*arguments: Any) -> Any:
    """Decode the rows of a PNG."""
    return _functions().decode_id_runs(*arguments)


def joint_histogram(*arguments: Any) -> Any:
    """Compare two maps."""
    return _functions().joint_histogram(*arguments)


def joint_histogram_of_runs(*arguments: Any) -> Any:
    """Compare two maps as runs."""
    return _functions().joint_histogram_of_runs(*arguments)


def best_masks(*arguments: Any) -> Any:
    """Find the best mask of each pixel; sizes are single numbers."""
    _functions()
    logits, scores, *sides = arguments
    return upsampled.best_masks(logits, scores, *zip(sides[::2], sides[1::2]))


def best_classes(*arguments: Any) -> Any:
    """Find the best class of each pixel; sizes are single numbers."""
    _functions()
    logits, *sides = arguments
    return upsampled.best_classes(logits, *zip(sides[::2], sides[1::2]))


def mask_boxes(*arguments: Any) -> Any:
    """Find the boxes of masks; sizes are single numbers."""
    _functions()
    logits, *sides = arguments
    return upsampled.mask_boxes(logits, *zip(sides[::2], sides[1::2]))


def overlay(*arguments: Any) -> Any:
    """Draw an overlay."""
    _functions()
    return images.overlay(*arguments)


def png_rows(*arguments: Any) -> Any:
    """Filter the rows of a PNG."""
    _functions()
    return images.png_rows(*arguments)
