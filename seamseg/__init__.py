"""Panoptic segmentation of street scenes: Seamless Scene Segmentation with in-place activated BatchNorm."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from seamseg.version import __version__

if TYPE_CHECKING:
    from seamseg.contrib.verbs import classifier, export, serve
    from seamseg.maps import prepare
    from seamseg.verbs import evaluate, load, predict, train

__all__ = ["__version__", "evaluate", "load", "predict", "prepare", "train"]

with suppress(ModuleNotFoundError):  # the core works without it
    import seamseg.contrib  # noqa: F401  # adds its parts to the core

    __all__ += ["classifier", "export", "serve"]


def __getattr__(name: str) -> Any:
    """Import the functions, and the converters of data sets, when they are used: `import seamseg` takes no time."""
    from importlib import import_module

    if name == "prepare":
        return import_module("seamseg.maps.prepare")
    if name in __all__:
        of_contrib = name in ("classifier", "export", "serve")
        return getattr(import_module("seamseg.contrib.verbs" if of_contrib else "seamseg.verbs"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
