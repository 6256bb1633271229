"""Run the parts of a training that come late before it begins, to find errors of custom components."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import BatchLoader, collate, index_sampler
from seamseg.data.transforms import without_things
from seamseg.models.network import Losses
from seamseg.training.checkpointing.rank_state import rng_state, set_rng_state
from seamseg.training.setup import Setup, Validate
from seamseg.training.step import autocast, buffers_restored, named_backward_error, weighted_sum
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.distributed import World
from seamseg.utils.errors import SeamsegError
from seamseg.validation.validator import Validator


def try_parts(
    setup: Setup, module: nn.Module, loader: BatchLoader, validator: Validate | None, world: World
) -> list[str]:
    """Train on an image without things and score one image, without a trace; return warnings. A collective call.

    Raises
    ------
    SeamsegError
        if that fails
    """
    random, net = rng_state(world.device), module.get_submodule("net")
    try:
        with buffers_restored(module):
            lines = _train_without_things(setup, module, loader, world)
            if isinstance(validator, Validator):
                lines += validator.try_one(net)
            return lines
    except Exception as error:
        # the training reports it, with the images of a whole batch
        if not lacks_memory(error):
            raise
        return []
    finally:
        module.zero_grad(set_to_none=True)
        set_rng_state(random, world.device)


def _train_without_things(setup: Setup, module: nn.Module, loader: BatchLoader, world: World) -> list[str]:
    """Run forward and backward pass on an image without things, twice where batches have several."""
    dataset, options = loader.dataset, setup.options
    assert isinstance(dataset, PanopticDataset)
    item = without_things(dataset[0], dataset.num_stuff)
    batch: Any = collate([item] * min(2, index_sampler(loader).batch_size)).to(world.device)

    def run() -> Losses:
        with autocast(options.precision, world.device):
            losses: Losses = module(batch if setup.prepare is None else setup.prepare(batch))
        weighted_sum(losses.means, options.loss_weights).backward()
        return losses

    where = f"image {item['id']} without its things"
    try:
        means = run().means
    except SeamsegError as error:
        raise type(error)(f"{where}: {error}") from error
    except RuntimeError as error:
        named = named_backward_error(error, module, None if world.is_distributed else run)
        if named is None:
            raise
        raise SeamsegError(f"{where}: {named}") from error
    invalid = [name for name, mean in means.items() if not torch.isfinite(mean)]
    return [f"{where}: {name} is not finite, which ends a training" for name in invalid]
