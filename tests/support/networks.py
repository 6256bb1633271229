"""Networks and images shared by the tests of the models."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seamseg.config import Config, config_from_string, load_config
from seamseg.models.build import build_network, build_training_module
from seamseg.models.network import Losses, Network, TrainingModule
from seamseg.models.panoptic import PanopticNet
from seamseg.ops.norm import ABN
from seamseg.structures import Batch, FixedBatch, PackedSequence
from seamseg.training.graphs import ROWS
from support.golden_files import tensor
from support.golden_weights import golden_state, sample_positions
from support.micro import narrow_body

ROOT = Path(__file__).parents[2]
CITYSCAPES = ROOT / "configs" / "cityscapes_r50.ini"
NUM_STUFF, NUM_THING = 11, 8

TINY = """
[body]
body = resnet18
normalization_mode = {mode}
gn_groups = 4
num_frozen = {num_frozen}
bn_frozen = no
out_channels = {{"mod1": 64, "mod2": 64, "mod3": 128, "mod4": 256, "mod5": 512}}
[fpn]
out_channels = 16
[rpn]
hidden_channels = 16
anchor_scale = 4
num_post_nms_train = 60
num_post_nms_val = 40
min_size = 0
[roi]
roi_size = (8, 8)
num_samples = 24
max_predictions = 20
fpn_canonical_scale = 64
fc_channels = 32
conv_channels = 8
"""
TINY_SEMANTIC = """
[sem]
pooling_size = (9, 9)
hidden_channels = 8
"""


def assert_order(order: torch.Tensor, scores: torch.Tensor, tie: float) -> None:
    """Stored item `k` is number `order[k]` of ours, each once; only items whose scores differ by at most `tie` may
    have changed places: which of two such scores is the higher depends on the processor's convolution kernels."""
    assert order.sort().values.tolist() == list(range(len(scores))), "the same items"
    changed = (order[:, None] > order[None]).triu(1)
    gaps = (scores[:, None] - scores[None]).abs()[changed]
    assert len(gaps) == 0 or gaps.max() <= tie, "in the same order but for near ties"


def gradient_errors(
    parameters: Mapping[str, nn.Parameter], names: np.ndarray, norms: np.ndarray, samples: np.ndarray
) -> tuple[dict[str, float], dict[str, float]]:
    """Relative errors of the norms of gradients, and the largest ones of stored values, as parts of a typical value."""
    of_norms, of_values = {}, {}
    for name, norm, sample in zip(names, norms, samples):
        gradient = parameters[name].grad.contiguous().double()
        of_norms[name] = abs(float(gradient.norm()) - norm) / max(norm, 1e-9)
        typical = max(norm, 1e-9) / np.sqrt(gradient.numel())
        values = gradient.flatten().numpy()[sample_positions(name, gradient.numel(), len(sample))]
        of_values[name] = np.abs(values - sample).max() / typical
    return of_norms, of_values


def assert_below(errors: Mapping[str, float], largest: float, median: float) -> None:
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < largest, worst
    assert np.median(list(errors.values())) < median


def part_of(batch: Batch, number: int) -> Batch:
    one = slice(number, number + 1)
    packed = (batch.images[one], batch.masks[one], batch.categories[one], batch.iscrowd[one], batch.boxes[one])
    return Batch(*packed, ids=batch.ids[one], original_sizes=batch.original_sizes[one])


def tiny_config(
    kind: str = "panoptic", mode: str = "bn", num_frozen: int = 0, overrides: tuple[str, ...] = ()
) -> Config:
    text = TINY.format(mode=mode, num_frozen=num_frozen) + (TINY_SEMANTIC if kind == "panoptic" else "")
    return config_from_string(text, kind, overrides=overrides)


NARROW = 'body.out_channels={"mod1": 64, "mod2": 8, "mod3": 16, "mod4": 16, "mod5": 16}'
"""Channels of the levels under `narrow_body`, an override."""


def in_turn(net: Network) -> Callable[[Batch], Losses]:
    """What computes the losses of a batch as a recorded step, with rows of void, but operator by operator."""

    def losses(batch: Batch) -> Losses:
        fixed = FixedBatch.of(batch, ROWS)
        return net.loss(net(fixed.images, fixed), fixed)

    return losses


def narrow_module(*overrides: str, kind: str = "panoptic", mode: str = "bn", num_frozen: int = 0) -> TrainingModule:
    """A training module of :func:`tiny_config` and a still smaller body, with the weights of seed 0."""
    torch.manual_seed(0)
    with narrow_body():
        config = tiny_config(kind, mode, num_frozen, (NARROW, *overrides))
        return build_training_module(config, 2, 3)


@pytest.fixture(scope="session")
def cityscapes() -> Config:
    return load_config(CITYSCAPES)


def load_golden(net: PanopticNet) -> PanopticNet:
    for part, state in golden_state().items():
        getattr(net, part).load_state_dict(state)
    return net


@pytest.fixture(scope="session")
def golden_net(cityscapes: Config) -> PanopticNet:
    return load_golden(build_network(cityscapes, NUM_STUFF, NUM_THING)).eval()


def golden_image(name: str, config: Config) -> torch.Tensor:
    mean, std = (torch.tensor(v)[:, None, None] for v in (config.dataloader.rgb_mean, config.dataloader.rgb_std))
    return (tensor("inputs", f"{name}_resized_u8").permute(2, 0, 1).float() / 255 - mean) / std


def golden_batch(config: Config) -> Batch:
    """The golden training batch: one image with stuff, things and a crowd."""
    return Batch(
        images=PackedSequence([golden_image("flower", config)]),
        masks=PackedSequence([tensor("train", "gt/msk").long()]),
        categories=PackedSequence([tensor("train", "gt/cat")]),
        iscrowd=PackedSequence([tensor("train", "gt/iscrowd")]),
        boxes=PackedSequence([tensor("train", "gt/bbx")]),
        ids=["flower"],
        original_sizes=[(256, 383)],
    )


def toy_batch(*sizes: tuple[int, int], empty: tuple[int, ...] = (), crowd: tuple[int, ...] = ()) -> Batch:
    """Random images of two stuff classes and two things; `empty` ones have no thing, one of `crowd` ones is a crowd."""
    generator = torch.Generator().manual_seed(0)
    images, masks, categories, iscrowd, boxes = [], [], [], [], []
    for i, (height, width) in enumerate(sizes):
        images.append(torch.randn(3, height, width, generator=generator))
        mask = torch.ones(1, height, width, dtype=torch.long)
        mask[:, height // 2 :] = 2
        mask[:, :2] = 0
        cat = [255, 0, 1]
        box = [[-1.0] * 4, [2.0, 0, height // 2, width], [height // 2, 0, height, width]]
        if i not in empty:
            for k, thing in enumerate((0, 2)):
                y0, x0, y1, x1 = height // 4, (1 + 4 * k) * width // 8, 3 * height // 4, (3 + 4 * k) * width // 8
                mask[:, y0:y1, x0:x1] = 3 + k
                cat.append(2 + thing)
                box.append([y0, x0, y1, x1])
        masks.append(mask)
        categories.append(torch.tensor(cat))
        iscrowd.append(torch.zeros(len(cat), dtype=torch.uint8))
        if i in crowd:
            iscrowd[-1][-1] = 1
        boxes.append(torch.tensor(box, dtype=torch.float32))
    packed = (PackedSequence(x) for x in (images, masks, categories, iscrowd, boxes))
    return Batch(*packed, ids=[str(i) for i in range(len(sizes))], original_sizes=list(sizes))


def randomise(net: nn.Module) -> None:
    """Give the norms statistics and weights as after a training; some weights are negative."""
    for layer in net.modules():
        if isinstance(layer, ABN):
            # negative weights are where in-place ABN is not batch norm
            nn.init.uniform_(layer.weight, -1.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 2)
