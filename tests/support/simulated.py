"""Training steps on tensors without values: they read nothing, and their memory can be counted at any size."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seamseg.config import Config
from seamseg.models.build import build_training_module
from seamseg.structures import Batch
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper, StepResult
from seamseg.utils.distributed import World


class LiveBytes(TorchDispatchMode):
    """Context that counts the bytes of what operators return, as long as it lives, without `own`.

    `peak` is the largest number. A library's workspaces are not among them.
    """

    def __init__(self, own: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = weakref.WeakSet(tensor.untyped_storage() for tensor in own)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                self._seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return result

    def _count(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def without_values(module: nn.Module) -> FakeTensorMode:
    """Replace parameters and buffers by tensors that have a shape only; return the mode in which they are used."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for layer in module.modules():
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None:
                fake = mode.from_tensor(tensor.detach())
                is_parameter = isinstance(tensor, nn.Parameter)
                setattr(layer, name, nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake)
    return mode


def simulated_step(config: Config, batch: Batch, classes: tuple[int, int]) -> tuple[StepResult, int]:
    """Return the result of the second step, and its peak in bytes above batch, weights and momenta.

    An operation that reads a value raises an error.
    """
    module = build_training_module(config, *classes).train()
    mode = without_values(module)
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, World())
    rates = [0.01] * len(optimizer.param_groups)
    with mode:
        stepper([batch], rates)
        optimizer.zero_grad(set_to_none=True)
        own = [*module.parameters(), *module.buffers(), *map(mode.from_tensor, batch.tensors())]
        momenta = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        with LiveBytes([*own, *momenta]) as live:
            return stepper([batch], rates), live.peak
