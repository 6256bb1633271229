"""The C library by whichever file serves it in this process: called by name, also from a process of the emulator's."""

from typing import Any

from seamseg.idmaps import library


def _functions() -> library.Library:
    assert library.functions is not None, f"no library: {library.state}"
    return library.functions


def decode_id_runs(*arguments: Any) -> Any:
    """Rows of a PNG."""
    return _functions().decode_id_runs(*arguments)


def joint_histogram(*arguments: Any) -> Any:
    """Two maps."""
    return _functions().joint_histogram(*arguments)


def joint_histogram_of_runs(*arguments: Any) -> Any:
    """Two maps as runs."""
    return _functions().joint_histogram_of_runs(*arguments)
