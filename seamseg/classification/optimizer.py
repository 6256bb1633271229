"""The optimizer of a configuration and its learning rates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import nn

from seamseg.classification.config import OptimizerConfig, ScheduleConfig
from seamseg.training.optim.optimizer import fill_state
from seamseg.training.optim.schedule import LRSchedule

_GAMMA = 0.1


def build_optimizer(net: nn.Module, options: OptimizerConfig) -> torch.optim.Optimizer:
    """Build SGD or Adam over all parameters, norms included.

    With `classifier_lr`, the parameters with `fc` in their name are a second group with that rate. The order of the
    groups and of their parameters is that of the original, whose optimizer states refer to it.
    """
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    groups = [{"params": [p for _, p in named], "lr": options.learning_rate}]
    if options.classifier_lr != -1:
        groups = [
            {"params": [p for name, p in named if "fc" not in name], "lr": options.learning_rate},
            {"params": [p for name, p in named if "fc" in name], "lr": options.classifier_lr},
        ]
    fused = all(p.device.type in ("cpu", "cuda") for _, p in named)
    optimizer: torch.optim.Optimizer
    if options.type == "Adam":
        optimizer = torch.optim.Adam(groups, lr=options.learning_rate, weight_decay=options.weight_decay, fused=fused)
    else:
        optimizer = torch.optim.SGD(
            groups,
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            nesterov=options.nesterov and options.momentum > 0,
            fused=fused,
        )
    fill_state(optimizer)
    return optimizer


class ClassifierSchedule(LRSchedule):
    """Learning rates of all parameter groups at a step.

    The curve runs over `t`, the number of finished epochs (`mode` epoch) or steps (`mode` step): factor 1 (constant),
    `gamma ** (t // step_size)` (step), `gamma` to the number of milestones up to t (multistep), `gamma ** t`
    (exponential), or `alpha * t + beta`, at least 0 (linear).

    Parameters
    ----------
    options : the schedule
    base_lrs : base rate of each parameter group
    epoch_length : steps an epoch
    """

    def __init__(self, options: ScheduleConfig, base_lrs: Sequence[float], epoch_length: int) -> None:
        super().__init__(base_lrs, options.epochs, epoch_length, options.mode == "epoch")
        self.kind = options.type
        self.params = dict(options.params)

    def factor(self, step: int, epoch: int) -> float:
        """See :meth:`LRSchedule.factor`."""
        t, params = epoch if self.by_epoch else step - 1, self.params
        gamma = params.get("gamma", _GAMMA)
        if self.kind == "step":
            return float(gamma ** (t // params["step_size"]))
        if self.kind == "multistep":
            return float(gamma ** bisect_right(sorted(params["milestones"]), t))
        if self.kind == "exponential":
            return float(gamma**t)
        # the rate of the original becomes negative
        return max(0.0, params["alpha"] * t + params["beta"]) if self.kind == "linear" else 1.0
