"""The moving average of the weights (`[optimizer] ema`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.checkpoints.snapshot import network_parts
from seamseg.training.optim.optimizer import running_statistics
from seamseg.utils.errors import InputError

_COUNT = "updates"


class WeightAverage:
    """Moving average of the trainable weights and of the running means and variances, in float32.

    It starts as a copy of the weights. Update number t, from 0, keeps the fraction `min(decay, (1 + t) / (10 + t))` of
    it, so that the initial weights are forgotten early in a training. Running statistics are averaged like the weights
    they belong to. Counters of norm layers and frozen weights are taken from the network. `key` is the name of the key
    of `decay`, for errors.
    """

    def __init__(self, net: nn.Module, decay: float, key: str = "optimizer.ema") -> None:
        self.net = net
        self.decay = decay
        self._key = key
        statistics = [b for b in running_statistics(net) if b.is_floating_point()]
        self._live: list[Tensor] = [*(p for p in net.parameters() if p.requires_grad), *statistics]
        self._statistics = len(statistics)
        with torch.no_grad():
            self._averages = [t.detach().clone(memory_format=torch.preserve_format).float() for t in self._live]
        self._updates = torch.zeros((), dtype=torch.int64, device=self._live[0].device)

    @property
    def statistics(self) -> list[Tensor]:
        """The averaged running statistics, which may differ between processes."""
        return self._averages[len(self._averages) - self._statistics :]

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """Include the current weights of the network, except where `skipped`: a bool scalar the host does not read."""
        keep = ((1 + self._updates) / (10 + self._updates).double()).clamp(max=self.decay)
        weight = torch.where(skipped, 0.0, 1.0 - keep).float()
        # three passes: foreach_lerp has no overload with a single weight on the device
        change = list(torch._foreach_sub(_detached(self._live), self._averages))
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._averages, change)
        self._updates += ~skipped

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the weights of the network by the average inside a `with` block, and restore them after it."""
        live = _detached(self._live)
        own = [tensor.clone() for tensor in live]
        try:
            torch._foreach_copy_(live, self._averages)
            yield
        finally:
            torch._foreach_copy_(live, own)

    def state_dict(self) -> dict[str, Any]:
        """Return the average by part, under the keys of the network's state, and the number of updates.

        The tensors are not copied: copy them before the next step.
        """
        return {**self._by_part(), _COUNT: self._updates}

    def load_state_dict(self, state: Any, source: str) -> None:
        """Restore a saved average; InputError if it belongs to another network or is damaged."""
        own = set(map(id, self._averages))
        try:
            for part, tensors in self._by_part().items():
                for key, tensor in tensors.items():
                    if id(tensor) in own:
                        tensor.copy_(state[part][key])
            self._updates.copy_(state[_COUNT])
        except (KeyError, TypeError, RuntimeError):
            raise InputError(
                f"{source}: its moving average does not fit this network; set {self._key}=0 to continue without it"
            ) from None

    def reset(self) -> None:
        """Restart as a copy of the current weights of the network."""
        torch._foreach_copy_(self._averages, _detached(self._live))
        self._updates.zero_()

    def _by_part(self) -> dict[str, dict[str, Tensor]]:
        average = {id(live): mean for live, mean in zip(self._live, self._averages)}
        return {
            # keep_vars: the tensors of the network, which are matched by identity
            part: {key: average.get(id(t), t.detach()) for key, t in module.state_dict(keep_vars=True).items()}
            for part, module in network_parts(self.net).items()
        }


def _detached(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]
