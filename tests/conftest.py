"""Fixtures for all tests."""

from support.folders import make_folder
from support.micro import memory, micro, micro_config, micro_run, narrow, published_config, seamseg_main
from support.networks import cityscapes, golden_net

__all__ = [
    "cityscapes",
    "golden_net",
    "make_folder",
    "memory",
    "micro",
    "micro_config",
    "micro_run",
    "narrow",
    "published_config",
    "seamseg_main",
]
