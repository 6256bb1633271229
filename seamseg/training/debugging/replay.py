"""Repeat a training step from its dump, to find where it fails."""

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

from seamseg.checkpoints.snapshot import Snapshot, load_into
from seamseg.config import config_from_string
from seamseg.formats.metadata import metadata_of
from seamseg.models.build import build_training_module
from seamseg.training.checkpointing.rank_state import set_rng_state
from seamseg.training.debugging.dump import Dump, read_dump
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import prepare_batch
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, choose_device
from seamseg.utils.errors import one_line


@dataclass(frozen=True)
class Replay:
    """The result of a repeated step.

    Attributes
    ----------
    dump : the repeated step
    losses : losses by name; `loss` is the weighted sum
    grad_norm : norm of the whole gradient
    bad_inputs : images with a pixel that is not finite
    first : the first module with an output that is not finite; None if all outputs are finite
    limit : `general.loss_limit` of the run
    scaled : the loss was scaled (fp16), so that a gradient that is not finite may be an overflow
    error : message of the exception if the step failed with one
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
        """Whether a loss or the gradient is not finite, or the loss is over the limit, as in the training."""
        if self.error is not None:
            return self.first is not None
        numbers = [*self.losses.values(), *([] if self.scaled else [self.grad_norm])]
        return not all(map(math.isfinite, numbers)) or 0 < self.limit < self.losses.get("loss", 0.0)


def replay(path: str | Path, device: str = "cpu") -> Replay:
    """Repeat the step of a dump in this process, with a learning rate of 0.

    A step of several processes is repeated without the others: synchronised norms use the images of this one only.

    Parameters
    ----------
    path : written by a failed training
    device : auto, cpu, cuda or cuda:N

    Raises
    ------
    InputError
        if the file is not a dump, or the device does not exist
    """
    dump = read_dump(path)
    world = World(device=choose_device(device))
    # the hooks need the uncompiled modules
    config = config_from_string(dump.config, None, f"config of {path}", ["general.compile=no"])
    metadata = metadata_of(dump.metadata, str(path))
    module = build_training_module(config, metadata.num_stuff, metadata.num_thing)
    load_into(module.net, Snapshot(dump.config, dump.state_dict), name=str(path), check_values=False)
    module.to(world.device).train()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, world)
    batches = [prepare_batch(batch.to(world.device), config.dataloader) for batch in dump.batches]
    losses, norm, failure = {}, math.nan, None
    set_rng_state(dump.rng, world.device)
    with _bad_outputs(module.net) as bad_modules:
        try:
            result = stepper(batches, [0.0] * len(optimizer.param_groups))
        except RuntimeError as error:
            # values that are not finite can raise almost any error; the modules found before it are the result
            failure = one_line(error)[:300]
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
        bad_modules[0] if bad_modules else None,
        config.general.loss_limit,
        stepper.scaler is not None,
        failure,
    )


@contextmanager
def _bad_outputs(net: nn.Module) -> Iterator[list[str]]:
    """Collect the names of modules whose outputs are not finite, in the order in which they finish."""
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
