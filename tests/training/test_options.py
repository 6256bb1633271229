"""Options of the trainer: losses and metrics by name."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from seamseg.config import load_config
from seamseg.config.kinds import KINDS
from seamseg.models.network import Losses
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper, weighted_sum
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError


def test_weights_of_a_configuration_by_name():
    options = TrainerOptions.from_config(
        load_config("toy_city_r18", overrides=["optimizer.loss_weights=(1,2,3,4,5,6)"])
    )
    assert options.loss_weights == dict(zip(KINDS["panoptic"].losses, (1, 2, 3, 4, 5, 6)))
    losses = {name: torch.tensor(1.0) for name in reversed(KINDS["panoptic"].losses)}
    assert weighted_sum(losses, options.loss_weights) == 21
    with pytest.raises(InputError, match="edge has no weight"):
        weighted_sum({**losses, "edge": torch.tensor(1.0)}, options.loss_weights)
    with pytest.raises(InputError, match="6 values for 5 losses"):
        weighted_sum(dict(list(losses.items())[1:]), options.loss_weights)


class Module(nn.Module):
    """The loss is the weight times the batch, the metric the batch."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.net.weight)

    def forward(self, batch):
        return Losses({"loss": self.net(batch.value).sum()}, {"loss": torch.tensor(1.0)}, {"value": batch.value[0]})


def test_metrics_are_reported_and_not_trained():
    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    options = TrainerOptions(1, {"loss": 2.0}, accumulate=2)
    batches = [SimpleNamespace(value=torch.tensor([value]), ids=[str(value)]) for value in (1.0, 5.0)]
    result = Stepper(options, module, optimizer, World())(batches, [0.1])
    assert (result.losses["loss"], result.total, result.metrics["value"]) == (3, 6, 3)
    assert module.net.weight.item() == pytest.approx(1 - 0.1 * 2 * 3)
    assert result.ids == ["1.0", "5.0"]


def test_other_errors_of_a_backward_pass_are_raised_as_they_are():
    """One that is its own cause would never be reported: to find the first error would not end."""
    module = Module()
    module.net.weight.register_hook(lambda gradient: gradient.view(2))
    batch = SimpleNamespace(value=torch.tensor([1.0]), ids=["a"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    with pytest.raises(RuntimeError, match="invalid for input") as error:
        Stepper(TrainerOptions(1, {"loss": 1.0}), module, optimizer, World())([batch], [0.1])
    assert error.value.__cause__ is None
