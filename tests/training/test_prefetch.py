"""Loading and upload of training batches, with the options of `[dataloader]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seamseg.structures import Batch, PackedSequence
from seamseg.training.prefetch import prefetched
from seamseg.training.run import TrainingOptions, run_training

EVERYTHING = (
    "random_flip=yes",
    "random_scale=(0.5, 1.5)",
    "crop_size=(48, 64)",
    "color_jitter=(0.3, 0.3, 0.3, 0.1)",
    "class_uniform=0.5",
)


def train(config: Path, data: Path, run: Path, *options: str) -> dict[str, torch.Tensor]:
    """The weights after a training on the CPU, by part and name."""
    given = ("val_set=", "scheduler.epochs=1", *options)
    overrides = [option if "." in option.split("=")[0] else f"dataloader.{option}" for option in given]
    run_training(TrainingOptions(config, data, run, overrides=overrides, device="cpu"))
    content = torch.load(run / "model_last.pth.tar", weights_only=True)["state_dict"]
    parts = ("body", "rpn_head", "roi_head", "sem_head")
    return {f"{part}.{name}": value for part in parts for name, value in content[part].items()}


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_weights_do_not_depend_on_where_images_are_transformed(micro_config, micro, tmp_path) -> None:
    plain = train(micro_config, micro, tmp_path / "plain", *EVERYTHING)
    for name, options in {
        "device": ("device_transforms=yes",),
        "lasting": ("num_workers=2", "persistent_workers=yes", "prefetch=1"),
        "both": ("num_workers=1", "persistent_workers=no", "device_transforms=yes"),
    }.items():
        found = train(micro_config, micro, tmp_path / name, *EVERYTHING, *options)
        assert found.keys() == plain.keys()
        assert all(torch.equal(value, plain[key]) for key, value in found.items())
    other = train(micro_config, micro, tmp_path / "other", *EVERYTHING[:-5])
    assert any(not torch.equal(value, other[name]) for name, value in plain.items())


def batches(count: int, device: str = "cpu") -> Iterator[Batch]:
    """Batches of random sizes that hold their number."""
    for number in range(count):
        size = 500 + 37 * number
        fill = [torch.full((3, size, size), float(number)), torch.full((3, 400, 300), float(number))]
        ones = [torch.full((n, 4), float(number)) for n in (1, 2)]
        packed = PackedSequence([t.pin_memory() for t in fill] if device == "cuda" else fill)
        boxes = PackedSequence(ones)
        yield Batch(packed, boxes, boxes, boxes, boxes, [str(number)] * 2, [(1, 1)] * 2)


def test_on_the_cpu_batches_pass_through() -> None:
    drawn = []

    def source() -> Iterator[Batch]:
        for batch in batches(3):
            drawn.append(batch)
            yield batch

    for number, (batch, source_batch) in enumerate(prefetched(source(), torch.device("cpu"))):
        assert len(drawn) == number + 1  # nothing is read ahead
        assert batch.images[0] is drawn[number].images[0]
        assert source_batch is drawn[number]
    assert number == 2
    assert not list(prefetched(iter(()), torch.device("cpu")))


@pytest.mark.gpu
def test_concurrent_uploads_are_complete() -> None:
    device = torch.device("cuda")
    weight = torch.randn(4096, 4096, device=device)
    ranges = []
    for batch, _ in prefetched(batches(20, "cuda"), device):
        assert batch.images.device == torch.device("cuda", torch.cuda.current_device())
        for _ in range(5):
            weight = torch.tanh(weight @ weight)  # keeps the device busy, so that uploads run ahead of it
        ranges.append(torch.stack([torch.stack(t.aminmax()).float() for t in batch.tensors()]))
        del batch
    for number, found in enumerate(ranges):
        assert torch.equal(found.cpu(), torch.full((10, 2), float(number)))
