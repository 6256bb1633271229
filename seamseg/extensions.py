"""What packages above the core add to it, when `seamseg` is imported; nothing of the core names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COMMANDS: dict[str, str] = {}
"""Help line of further commands by name, each with a module in :mod:`seamseg.cli`."""

OPENERS: list[Callable[..., Any]] = []
"""Functions with the arguments of :func:`seamseg.inference.predictor.open_for_inference`, which open models of other
formats, and return None for a model that is not theirs."""

FORMATS: list[str] = []
"""Modules that register output formats of `predict`."""

RECIPES: list[str] = []
"""Packages of components, whose modules a configuration names; a model may import modules of these only."""
