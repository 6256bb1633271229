"""A small network and the updates of its weights, step by step."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seamseg.config import default_config
from seamseg.ops.fused import autocast
from seamseg.ops.norm import InPlaceABN
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World


def small_net() -> nn.Module:
    """A network of two parts, the way :class:`seamseg.models.panoptic.PanopticNet` has four."""
    net = nn.Module()
    net.body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), InPlaceABN(8), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
    net.rpn_head = nn.Conv2d(4, 2, 1)
    net.roi_head = net.sem_head = None
    return net


def config_of(**values):
    """The default configuration with other values of `[general]` and `[optimizer]`, and norm layers that learn."""
    config = default_config()
    general = {k: values.pop(k) for k in list(values) if hasattr(config.general, k)}
    return replace(
        config,
        general=replace(config.general, **general),
        body=replace(config.body, bn_frozen=False),
        optimizer=replace(config.optimizer, **{"lr": 0.05, **values}),
    )


def stepper_of(net: nn.Module, device: str = "cpu", world: World | None = None, **values) -> Stepper:
    config, module = config_of(**values), nn.Module()
    module.net = net
    world = world or World(device=torch.device(device))
    return Stepper(TrainerOptions.from_config(config), module, build_optimizer(net, config), world)


def images(seed: int) -> Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


class Step(NamedTuple):
    loss: Tensor
    norm: Tensor
    skipped: Tensor


class Worker:
    """A small network that learns; two of the same configuration do the same."""

    def __init__(self, world: World | None = None, **values) -> None:
        torch.manual_seed(0)
        self.net = small_net()
        self.config = config_of(**values)
        self.world = world or World()
        self.stepper = stepper_of(self.net, world=world, **values)
        if self.stepper.scaler is not None:
            # the first steps of a real training find such a scale themselves
            self.stepper.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def loss(self, seed: int, factor: float = 1.0) -> Tensor:
        with autocast(self.config.general.precision, self.world.device):
            y = self.net.rpn_head(self.net.body(images(seed)))
        return (y.float() - 1).square().mean() * factor

    def step(self, seed: int, loss_factor: float = 1.0, gradient: float | None = None) -> Step:
        """One step; `gradient` replaces one element of the gradient."""
        self.stepper.begin()
        loss = self.loss(seed, loss_factor)
        self.stepper.backward(loss)
        if gradient is not None:
            self.net.body[0].weight.grad[0, 0, 0, 0] = gradient
        return Step(loss.detach(), *self.stepper.update(loss.detach()))


def state_of(stepper: Stepper, scaler: bool = True) -> dict[str, Tensor]:
    """Copy everything that an update may change, by name; of fp16's scale only with `scaler`."""
    state = {f"net.{key}": value for key, value in stepper.net.state_dict().items()}
    for number, entry in stepper.optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{number}.{key}": value for key, value in entry.items()}
    if stepper.ema is not None:
        saved = stepper.ema.state_dict()
        state |= {"ema.updates": saved.pop("updates")}
        state |= {f"ema.{part}.{key}": value for part, tensors in saved.items() for key, value in tensors.items()}
    if scaler and stepper.scaler is not None:
        state["scale"] = torch.tensor(stepper.scaler.get_scale())
    return {key: value.clone() for key, value in state.items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() - {"scale"} == two.keys() - {"scale"}
    different = [key for key in two if key in one and not torch.equal(one[key], two[key])]
    assert not different, different
