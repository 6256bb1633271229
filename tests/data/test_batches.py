"""Batches of samples, with and without DataLoader workers."""

import random

import numpy as np
import pytest
import torch

from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import LoaderOptions, collate, train_loader
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import AugmentationOptions, TrainTransform
from seamseg.data.workers import WorkerSeed
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.errors import InputError


def dataset(root, split="train", kind=PanopticDataset, **options):
    augmentation = AugmentationOptions(random_flip=True, random_scale=(0.5, 2))
    return kind(root, split, TrainTransform(16, 64, augmentation=augmentation), **options)


def same(a, b):
    if isinstance(a, PackedSequence):
        return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
    return a == b


def assert_same(a: Batch, b: Batch):
    assert all(same(vars(a)[k], vars(b)[k]) for k in vars(a))


def test_collate(make_folder):
    data = dataset(make_folder())
    items = [data[i] for i in (2, 0)]
    batch = collate(items)
    assert len(batch) == 2
    assert batch.ids == ["im2", "im0"]
    assert batch.original_sizes == [(14, 14), (12, 20)]
    assert torch.equal(batch.images[1], items[1]["img"])
    assert batch.masks.dtype == torch.int64
    assert batch.iscrowd.dtype == torch.uint8
    assert batch.categories.dtype == torch.int64
    assert batch.boxes.dtype == torch.float32


@pytest.mark.parametrize("workers", [0, 1])
def test_worker_errors_are_one_line(make_folder, workers):
    root = make_folder()
    (root / "img" / "im1.png").write_bytes(b"")
    data = dataset(root)
    loader = train_loader(data, DistributedARBatchSampler(data.img_sizes, 1), LoaderOptions(num_workers=workers))
    with pytest.raises(InputError) as error:
        list(loader)
    assert str(error.value) == f"{root / 'img' / 'im1.png'}: the file is empty (0 bytes)"


def test_pin_memory_pins_every_tensor(make_folder, monkeypatch):
    from torch.utils.data._utils.pin_memory import pin_memory  # what the DataLoader's thread calls

    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    data = dataset(make_folder())
    batch = collate([data[0], data[1]])
    assert_same(pin_memory(batch), batch)
    assert len(pinned) == 10


def test_worker_seeds_differ_and_are_reproducible():
    def draws(**who):
        worker = who.pop("worker", 0)
        WorkerSeed(**who)(worker)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    state, np_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        cases = [{}, {"seed": 1}, {"rank": 1}, {"epoch": 1}, {"worker": 1}]
        values = [draws(**c) for c in cases]
        assert len(set(values)) == len(cases)
        assert values == [draws(**c) for c in cases]
    finally:
        random.setstate(state)
        np.random.set_state(np_state)
        torch.set_rng_state(torch_state)
