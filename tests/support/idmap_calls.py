"""The functions of the C library of this process, called by name, also in processes of the emulator."""

from typing import Any

from seamseg.idmaps import library


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
