"""An optimizer, `[optimizer] type = lion`; set `[optimizer] lr` to a rate that suits it."""

from dataclasses import dataclass

import torch

from seamseg.components import key, optimizer


@dataclass(frozen=True)
class LionKeys:
    """Keys of the section [optimizer lion]."""

    beta1: float = key("weight of the momentum in an update", 0.9, minimum=0, maximum=1)
    beta2: float = key("decay of the momentum", 0.99, minimum=0, maximum=1)


@optimizer("lion", keys=LionKeys)
class Lion(torch.optim.Optimizer):
    """The sign of an average of the gradients (arXiv 2302.06675)."""

    def __init__(self, groups, keys):
        super().__init__(groups, {})
        self.keys = keys

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters; what is in `self.state` is in snapshots."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    update = torch.lerp(p.grad, momentum, self.keys.beta1).sign_()
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                    momentum.lerp_(p.grad, 1 - self.keys.beta2)
