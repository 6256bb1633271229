"""The second half of a step: from gradients to weights, or to none where the numbers are not finite."""

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
from seamseg.training.optim.optimizer import step_unless
from seamseg.training.optim.precision import loss_scaler
from seamseg.training.optim.running_statistics import StatisticsGuard
from seamseg.utils.distributed import World, broadcast_buffers, broadcast_tensors
from seamseg.utils.errors import InputError


class Update:
    """Gradients to weights, momentum, moving average and running statistics; all of them, or none.

    None of them changes from the first step on whose loss or gradient is not finite in any process, or whose loss is
    over `general.loss_limit`: the host looks at losses only now and then, stops the training then, and must find the
    weights of before. With fp16 a gradient that is not finite is an overflow, of which every training has some: that
    step alone is left out, and the loss is scaled less from then on. All this is decided on the device; the host reads
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
        self.scaler = loss_scaler(config.general.precision, world.device)
        self.ema = WeightAverage(net, config.optimizer.ema) if config.optimizer.ema > 0 else None
        self._guard = StatisticsGuard(net)
        self._stopped = torch.zeros((), dtype=torch.bool, device=world.device)

    def begin(self) -> None:
        """Forget the last gradients. Call it before the first forward pass of a step."""
        self.optimizer.zero_grad(set_to_none=True)
        self._guard.keep()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, scaled where the precision needs it."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def finish(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights by the gradients so far.

        Parameters
        ----------
        loss : the weighted loss of the whole step, a detached scalar; processes may have different ones

        Returns
        -------
        norm : of the gradient over all parameters, not clipped; float32 scalar on the device
        skipped : whether the update was left out; bool scalar on the device
        """
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.world.device)
        overflow = ~torch.isfinite(norm)
        bad = self._anywhere(~torch.isfinite(loss) | (loss > (self.loss_limit or torch.inf)))
        self._stopped |= bad if self.scaler is not None else bad | overflow
        skipped = self._stopped | overflow
        if self.clip_norm > 0:
            clip_grads_with_norm_(parameters, self.clip_norm, norm)
        step_unless(self.optimizer, skipped)
        if self.scaler is not None:
            self.scaler.update()
        self._guard.restore(skipped)
        if self.ema is not None:
            self.ema.update(skipped)
        return norm, skipped

    def _anywhere(self, flag: Tensor) -> Tensor:
        """Whether a flag is set in any process. Gradients need no such word: they are the same everywhere."""
        if not self.world.is_distributed:
            return flag
        number = flag.float()
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return number > 0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The network holds the moving average, if there is one, inside a `with` block."""
        if self.ema is None:
            yield
            return
        with self.ema.swapped_in():
            yield

    def share_statistics(self) -> None:
        """Give all processes the main process' running statistics, of the network and of the average.

        Each process has its own where norm layers are not synchronised. All processes must call it.
        """
        broadcast_buffers(self.world, self.net)
        if self.ema is not None:
            broadcast_tensors(self.world, self.ema.statistics)

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot needs besides weights and optimizer: "scaler" and "ema", those that there are."""
        state: dict[str, Any] = {}
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.ema is not None:
            state["ema"] = self.ema.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any], source: str) -> None:
        """Continue from a saved state. What it lacks starts anew, the average from the network's present weights.

        Raises
        ------
        InputError
            if it is damaged or of another network
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
