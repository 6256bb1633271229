"""Random steps in float64 by several processes and by one, whose results are nearly bit-identical."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from seamseg.config import config_from_string
from seamseg.maps.panoptic_map import VOID
from seamseg.models.build import build_training_module
from seamseg.models.network import TrainingModule
from seamseg.structures import Batch, PackedSequence
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper, StepResult
from seamseg.utils.distributed import World, distributed
from support.micro import CONFIG, narrow_body
from support.processes import launch

HEIGHT, WIDTH = 48, 64
ALL_SAMPLES = ("rpn.num_samples=1000000", "roi.num_samples=100000", "roi.sample_empty_images=no")
"""Every anchor and proposal is used, so that nothing is random."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Let the losses, which compute in float32 at least, compute in float64; make `resnet18` small."""
    with narrow_body(), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


class Network:
    """The narrow network in float64, with a stepper that leaves the weights alone."""

    def __init__(self, norm: str, world: World, *overrides: str) -> None:
        config = config_from_string(CONFIG.format(norm=norm), "panoptic", overrides=(*ALL_SAMPLES, *overrides))
        torch.manual_seed(0)
        self.module: TrainingModule = build_training_module(config, 2, 2).double()
        self._start = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)
        self.stepper = Stepper(TrainerOptions.from_config(config), self.module, optimizer, world)

    def begin(self, step: int) -> None:
        """Other weights for each step, the same for every network of this size; fresh statistics."""
        generator = torch.Generator().manual_seed(step)
        for name, tensor in self.module.state_dict().items():
            start = self._start[name]
            parameter = start.is_floating_point() and "running" not in name
            noise = 0.2 * torch.randn(start.shape, generator=generator, dtype=torch.float64) if parameter else 0
            # outputs that start small would hide errors of what lies before them
            tensor.copy_(start * (3 if "roi_cls" in name or "roi_bbx" in name else 1) * (1 + noise))

    def step(self, number: int, batches: Sequence[Batch]) -> StepResult:
        self.begin(number)
        self.module.train()
        return self.stepper(batches, [0.0])

    def gradients(self) -> dict[str, Tensor]:
        return {n: p.grad.clone() for n, p in self.module.named_parameters() if p.grad is not None}

    def buffers(self) -> dict[str, Tensor]:
        return {n: b.clone() for n, b in self.module.named_buffers()}


def image(rng: random.Random) -> dict[str, Tensor]:
    """A noisy image with two stuff classes and 0 to 3 things, some of them crowds."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    pixels = torch.randn(3, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    masks = torch.ones(1, HEIGHT, WIDTH, dtype=torch.long)
    masks[:, rng.randrange(10, 40) :] = 2
    masks[:, : rng.randrange(4)] = 0
    categories, crowd = [VOID, 0, 1], [0, 0, 0]
    for _ in range(rng.choice((0, 0, 0, 1, 2, 3))):
        y, x = rng.randrange(HEIGHT - 12), rng.randrange(WIDTH - 12)
        masks[:, y : y + rng.randrange(6, 20), x : x + rng.randrange(6, 24)] = len(categories)
        pixels[:, masks[0] == len(categories)] += 2
        categories.append(rng.choice((2, 3)))
        crowd.append(int(rng.random() < 0.25))
    boxes = torch.full((len(categories), 4), -1.0, dtype=torch.float64)
    for number in range(1, len(categories)):
        where = torch.nonzero(masks[0] == number)
        if where.shape[0]:
            boxes[number] = torch.cat((where.amin(0), where.amax(0) + 1)).double()
    return {
        "images": pixels,
        "masks": masks,
        "categories": torch.tensor(categories),
        "iscrowd": torch.tensor(crowd, dtype=torch.uint8),
        "boxes": boxes,
    }


def batch_of(images: Sequence[dict[str, Tensor]]) -> Batch:
    packed = {name: PackedSequence([i[name] for i in images]) for name in images[0]}
    names = [str(number) for number in range(len(images))]
    return Batch(**packed, ids=names, original_sizes=[(HEIGHT, WIDTH)] * len(images))


def images_of(step: int, parts: int) -> list[list[dict[str, Tensor]]]:
    """The images of a step in uneven parts, of 1 to 3 each; every 17th step has no thing at all."""
    rng = random.Random(f"step {step}")
    made = [[image(rng) for _ in range(rng.choice((1, 1, 2, 3)))] for _ in range(parts)]
    if step % 17 == 3:
        for one in (one for part in made for one in part):
            one["categories"], one["iscrowd"], one["boxes"] = (
                one[name][:3] for name in ("categories", "iscrowd", "boxes")
            )
            one["masks"] = one["masks"].clamp(max=2)
    return made


def error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference of any tensor relative to its own range; of tiny tensors to a millionth of the largest."""
    assert got.keys() == wanted.keys()
    largest = max(float(t.abs().max()) for t in wanted.values())
    return max(
        float((got[name] - t).abs().max() / max(float(t.abs().max()), 1e-6 * largest)) for name, t in wanted.items()
    )


def in_processes(size: int, *calls: tuple, seconds: float = 300) -> None:
    """Call `function(world, *args)` for each of `(function, *args)` in `size` processes that train together.

    One start of processes for many: it takes longer than most of what they do.
    """
    launch(_joined, size, calls, seconds=seconds)


def _joined(rank: int, join: Callable[[], None], calls: Sequence[tuple]) -> None:
    join()
    with in_float64(), distributed("cpu") as world:
        for function, *args in calls:
            function(world, *args)
