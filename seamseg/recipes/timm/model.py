"""timm networks as timm makes them, within limits of their size."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from seamseg.config.bodies import TIMM
from seamseg.config.checks import MAX_PARAMETERS
from seamseg.utils.errors import InputError, did_you_mean

MAX_MODULES = 10_000
"""Most modules of a timm network, whose own have up to 2000."""

_SECONDS = 20
"""Most CPU time to set up a network, for tables of attention that some make in loops."""


def import_timm(name: str) -> ModuleType:
    """Return timm; InputError if it is not installed, which the network of this name needs."""
    try:
        import timm
    except ImportError as error:
        raise InputError(f"[body] body = {name}: needs timm ({error}): pip install 'seamseg[timm]'") from None
    found: ModuleType = timm
    return found


def create_model(name: str, arguments: Mapping[str, Any], meta: bool = False, pretrained: bool = False) -> Any:
    """Return a timm network without its classifier.

    Parameters
    ----------
    name : name of the network
    arguments : further arguments of `timm.create_model`
    meta : allocate no memory for its weights
    pretrained : load the timm weights, which may be downloaded; otherwise random ones
    """
    timm = import_timm(TIMM + name)
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        meant = did_you_mean(architecture, timm.list_models())
        raise InputError(f"[body] body = {TIMM}{name}: timm {timm.__version__} has no such network{meant}")
    if not meta:
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    with _limited(TIMM + name), torch.device("meta"):
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)


@contextmanager
def _limited(name: str) -> Iterator[None]:
    """Raise InputError as soon as a network that this thread builds is beyond the limits: each module takes memory."""
    thread, begin = threading.get_ident(), time.thread_time()
    modules = parameters = 0

    def count(owner: nn.Module, key: str, added: nn.Module | nn.Parameter | None) -> None:
        nonlocal modules, parameters
        if threading.get_ident() != thread:
            return
        modules += isinstance(added, nn.Module)
        parameters += 0 if added is None or isinstance(added, nn.Module) else added.numel()
        if modules > MAX_MODULES:
            raise InputError(f"[body] body = {name}: has too many modules, the limit is {MAX_MODULES}")
        # some are replaced while they are built
        if parameters > 2 * MAX_PARAMETERS:
            raise InputError(f"[body] body = {name}: has too many parameters, the limit is {MAX_PARAMETERS}")
        if time.thread_time() - begin > _SECONDS:
            raise InputError(f"[body] body = {name}: takes too long to set up, the limit is {_SECONDS} s")

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
