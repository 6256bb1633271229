"""The second half of a step: gradients to weights, unless a loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from seamseg.config import Config
from seamseg.training.optim.ema import WeightAverage
from seamseg.training.optim.optimizer import running_statistics, step_unless
from seamseg.utils.distributed import World, broadcast_buffers, broadcast_tensors
from seamseg.utils.errors import InputError


class Update:
    """Updates weights, momentum, moving average and running statistics; all of them, or none.

    None of them changes from the first step on whose loss or gradient is not finite in any process, or whose loss is
    over `general.loss_limit`: the host reads the losses only every few steps, then stops the training, and must find
    the weights from before that step. With fp16 a gradient that is not finite is an overflow, which is expected now and
    then: only that step is skipped, and the loss scale is lowered. All this is decided on the device; the host reads
    nothing.

    Parameters
    ----------
    config : precision, limits of gradient and loss, moving average
    net : the network, not wrapped
    optimizer : of its parameters, from :func:`seamseg.training.optim.optimizer.build_optimizer`
    world : the processes, which all make the same updates
    """

    def __init__(self, config: Config, net: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
        self.net = net
        self.optimizer = optimizer
        self.world = world
        self.clip_norm = config.optimizer.clip_norm
        self.loss_limit = config.general.loss_limit
        # the range of bf16 is that of float32, which needs no scaling
        self.scaler = torch.amp.GradScaler(world.device.type) if config.general.precision == "fp16" else None
        self.ema = WeightAverage(net, config.optimizer.ema) if config.optimizer.ema > 0 else None
        self._statistics = _StatisticsBackup(net)
        self._stopped = torch.zeros((), dtype=torch.bool, device=world.device)

    def begin(self) -> None:
        """Reset the gradients. Call it before the first forward pass of a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._statistics.save()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled where the precision requires it."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def finish(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights by the accumulated gradients.

        Parameters
        ----------
        loss : the weighted loss of the whole step, a detached scalar; it may differ between processes

        Returns
        -------
        norm : of the gradient over all parameters, before clipping; float32 scalar on the device
        skipped : whether the update was skipped; bool scalar on the device
        """
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.world.device)
        overflow = ~torch.isfinite(norm)
        bad = self._in_any_process(~torch.isfinite(loss) | (loss > (self.loss_limit or torch.inf)))
        self._stopped |= bad if self.scaler is not None else bad | overflow
        skipped = self._stopped | overflow
        if self.clip_norm > 0:
            clip_grads_with_norm_(parameters, self.clip_norm, norm)
        step_unless(self.optimizer, skipped)
        if self.scaler is not None:
            self.scaler.update()
        self._statistics.restore(skipped)
        if self.ema is not None:
            self.ema.update(skipped)
        return norm, skipped

    def _in_any_process(self, flag: Tensor) -> Tensor:
        """Return whether a flag is set in any process; not needed for gradients, which all processes share."""
        if not self.world.is_distributed:
            return flag
        number = flag.float()
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return number > 0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the moving average of the weights, if there is one, into the network inside a `with` block."""
        if self.ema is None:
            yield
            return
        with self.ema.swapped_in():
            yield

    def share_statistics(self) -> None:
        """Copy the running statistics of the main process, of network and average, to all others; a collective call.

        They differ between processes where norm layers are not synchronised.
        """
        broadcast_buffers(self.world, self.net)
        if self.ema is not None:
            broadcast_tensors(self.world, self.ema.statistics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides weights and optimizer: "scaler" and "ema", as far as they are in use."""
        state: dict[str, Any] = {}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Restore a saved state. Missing parts are reset, the average to the current weights of the network.

        Raises
        ------
        InputError
            if it is damaged or belongs to another network
        """
        if self.scaler is not None and "scaler" in state:
            try:
                self.scaler.load_state_dict(dict(state["scaler"]))
            except (KeyError, TypeError, ValueError, RuntimeError):
                raise InputError(f"{source}: the state of its loss scale is damaged") from None
        if self.ema is not None:
            if "ema" in state:
                self.ema.load_state_dict(state["ema"], source)
            else:
                self.ema.reset()


class _StatisticsBackup:
    """A copy of the running statistics from before a step, restored if the step is skipped.

    A forward pass that overflows writes invalid values into the statistics before the overflow is detected.

    Parameters
    ----------
    net : on its device; its buffers must stay the same tensors
    """

    def __init__(self, net: nn.Module) -> None:
        self._buffers: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(net):
            self._buffers.setdefault(buffer.dtype, []).append(buffer)
        self._saved: dict[torch.dtype, Tensor] = {}

    def save(self) -> None:
        """Copy the current statistics."""
        # one vector for all: hundreds of short tensors would each cost a kernel launch
        self._saved = {dtype: _flat(buffers) for dtype, buffers in self._buffers.items()}

    @torch.no_grad()
    def restore(self, skipped: Tensor) -> None:
        """Restore the copy where `skipped`, a bool scalar on the device that the host does not read."""
        for dtype, buffers in self._buffers.items():
            chosen = torch.where(skipped, self._saved[dtype], _flat(buffers))
            parts = chosen.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(buffer) for part, buffer in zip(parts, buffers)])
        self._saved = {}


def _flat(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
