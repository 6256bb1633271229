"""Repeating a training step from its dump, to see where it goes wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from seamseg.checkpoints.bundle import metadata_from_header
from seamseg.checkpoints.snapshot import Snapshot, load_into
from seamseg.config import config_from_string
from seamseg.models.build import build_training_module
from seamseg.training.checkpointing.rng import set_random_state
from seamseg.training.debugging.dump import Dump, read_dump
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, choose_device


@dataclass(frozen=True)
class Replay:
    """What came of a repeated step.

    Attributes
    ----------
    dump : what was repeated
    losses : by name; `loss` is the weighted sum
    grad_norm : of the whole gradient
    bad_inputs : images of which a pixel is not finite
    first : the first module of whose output a number is not finite; None if all are
    limit : `general.loss_limit` of the run
    scaled : the loss was scaled (fp16), so that a gradient that is not finite may be an overflow
    error : what stopped the step, if it did not come to losses
    """

    dump: Dump
    losses: dict[str, float]
    grad_norm: float
    bad_inputs: list[str]
    first: str | None
    limit: float
    scaled: bool = False
    error: str | None = None

    @property
    def reproduced(self) -> bool:
        """Whether a loss or the gradient is not finite, or the loss is over the limit, this time too"""
        if self.error is not None:
            return self.first is not None
        numbers = [*self.losses.values(), *([] if self.scaled else [self.grad_norm])]
        return not all(map(math.isfinite, numbers)) or 0 < self.limit < self.losses.get("loss", 0.0)


def replay(path: str | Path, device: str = "cpu") -> Replay:
    """Repeat the step of a dump in this process, with a learning rate of 0.

    A step of several processes is repeated without the others: synchronised norms see the images of this one only.

    Parameters
    ----------
    path : written by a training that stopped
    device : auto, cpu, cuda or cuda:N

    Raises
    ------
    InputError
        if the file is no dump, or there is no such device
    """
    dump = read_dump(path)
    world = World(device=choose_device(device))
    # what looks into the network must see its modules
    config = config_from_string(dump.config, "panoptic", f"config of {path}", ["general.compile=no"])
    metadata = metadata_from_header(dump.metadata, str(path))
    module = build_training_module(config, metadata.num_stuff, metadata.num_thing)
    load_into(module.net, Snapshot(dump.config, dump.state_dict), strict=True, name=str(path))
    module.to(world.device).train()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(config, module, optimizer, world)
    losses, norm, failure = {}, math.nan, None
    set_random_state(dump.rng, world.device)
    with _first_bad_output(module.net) as found:
        try:
            result = stepper(dump.batches, [0.0] * len(optimizer.param_groups))
        except RuntimeError as error:
            # after numbers that are not finite nearly anything can fail; what was found until then is the answer
            failure = " ".join(str(error).split())[:300]
        else:
            losses = {name: float(value) for name, value in {**result.losses, "loss": result.total}.items()}
            norm = float(result.grad_norm)
    bad = [
        name
        for batch in dump.batches
        for name, image in zip(batch.ids, batch.images)
        if image is not None and not _finite(image)
    ]
    return Replay(
        dump,
        losses,
        norm,
        bad,
        found[0] if found else None,
        config.general.loss_limit,
        stepper.update.scaler is not None,
        failure,
    )


@contextmanager
def _first_bad_output(net: nn.Module) -> Iterator[list[str]]:
    """Fills a list with the names of modules whose outputs are not finite, in the order in which they end."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = (leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, Tensor))
            if not all(_finite(t) for t in tensors):
                found.append(f"{name} ({type(module).__name__})")

        return hook

    handles = [part.register_forward_hook(watch(name)) for name, part in net.named_modules() if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _finite(values: Tensor) -> bool:
    return not values.is_floating_point() or bool(torch.isfinite(values).all())
