"""Typed configuration over INI files (docs/contract.md, section 2)."""

from .experiments import experiments, find_experiment
from .kinds import KINDS
from .loader import config_from_string, config_to_string, default_config, load_config
from .sections import Config

__all__ = [
    "KINDS",
    "Config",
    "config_from_string",
    "config_to_string",
    "default_config",
    "experiments",
    "find_experiment",
    "load_config",
]
