"""An optimizer, `[optimizer] type = example`; set `[optimizer] lr` to a rate that suits it."""

from dataclasses import dataclass

import torch

from seamseg.components import key, optimizer


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [optimizer example]."""

    momentum: float = key("decay of the average of the gradients", 0.9, minimum=0, maximum=1)


@optimizer("example", keys=ExampleKeys)
class Example(torch.optim.Optimizer):
    """Sign descent with momentum (Signum, arXiv 1802.04434)."""

    def __init__(self, groups, keys):
        super().__init__(groups, {})
        self.keys = keys

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters; what is in `self.state` is in snapshots."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - self.keys.momentum)
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(average.sign(), alpha=-group["lr"])
