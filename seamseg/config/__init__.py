"""Typed configuration over INI files (docs/contract.md, section 2)."""

from seamseg.config.experiments import experiments, find_experiment
from seamseg.config.kinds import KINDS
from seamseg.config.loader import config_from_string, config_to_string, default_config, load_config
from seamseg.config.sections import Config

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
