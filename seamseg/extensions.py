"""What packages above the core add to it, when `seamseg` is imported; nothing of the core names them."""

from __future__ import annotations

COMMANDS: dict[str, str] = {}
"""Help line of further commands by name, each with a module in :mod:`seamseg.cli`."""

OPENERS: dict[str, str] = {}
"""Modules that open the models of other libraries, see :func:`seamseg.checkpoints.model_path.library_of`. Each has a
function `open_model` with the arguments of :func:`seamseg.inference.predictor.open_for_inference`."""

FORMATS: list[str] = []
"""Modules that register output formats of `predict`."""

RECIPES: list[str] = []
"""Packages of components, whose modules a configuration names; a model may import modules of these only."""
