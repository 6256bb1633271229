"""DataLoader workers: persistent or not, and their failure."""

import os
import random
import signal
import time
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.sections import train_transform

from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import BatchLoader, begin_worker, index_sampler, train_loader, translate_worker_errors
from seamseg.data.samplers import ClassUniformSampling, DistributedARBatchSampler
from seamseg.structures import PackedSequence
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

SIZES = [(12, 20), (20, 12), (14, 14), (10, 18), (9, 30), (8, 12)]


def loader_of(data, workers, persistent_workers=False, prefetch=2, batch_size=2):
    keys = SimpleNamespace(num_workers=workers, persistent_workers=persistent_workers, prefetch=prefetch)
    loader = train_loader(data, DistributedARBatchSampler(data.img_sizes, batch_size), keys, World())
    index_sampler(loader).replace = ClassUniformSampling(data.images, 0.5)
    return loader


def test_persistent_workers_load_the_same_batches(make_folder):
    data = dataset(make_folder(SIZES))
    plain, fresh, lasting = (
        loader_of(data, n, persistent_workers=p, prefetch=3) for n, p in ((0, True), (2, False), (2, True))
    )
    pids, state = [], torch.get_rng_state()
    # an abandoned epoch does not affect the next
    index_sampler(lasting).set_epoch(5)
    next(iter(lasting))
    for epoch in (0, 4):
        batches = []
        for loader in (plain, fresh, lasting):
            index_sampler(loader).set_epoch(epoch)
            batches.append(list(loader))
        pids.append([worker.pid for worker in lasting._iterator._workers])
        for a, b, c in zip(*batches, strict=True):
            assert_same(a, b)
            assert_same(a, c)
    assert torch.equal(torch.get_rng_state(), state)
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2


class Draws(torch.utils.data.Dataset):
    """What a component of a data set draws that does not use the generator it is given."""

    def __getitem__(self, index):
        return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_numbers_of_workers_differ_and_are_reproducible():
    def draws(seed=0, epoch=0, rank=0):
        sampler = DistributedARBatchSampler([(1, 1)] * 4, 1, 2, rank, seed=seed)
        keys = SimpleNamespace(num_workers=2, persistent_workers=False, prefetch=2)
        loader = train_loader(Draws(), sampler, keys, World(), lambda items: items[0])
        sampler.set_epoch(epoch)
        return list(loader)

    cases = [{}, {"seed": 1}, {"epoch": 1}, {"rank": 1}]
    found = [draws(**case) for case in cases]
    # a rank has two batches, one of each worker
    assert len({number for batches in found for batch in batches for number in batch}) == len(cases) * 2 * 3
    assert found == [draws(**case) for case in cases]


class Dying(PanopticDataset):
    def _read_image(self, index, at_least=None):
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return super()._read_image(index, at_least)


def test_error_of_a_killed_worker(make_folder):
    loader = loader_of(dataset(make_folder(SIZES), kind=Dying), 2, persistent_workers=True)
    index_sampler(loader).set_epoch(0)
    with pytest.raises(SeamsegError) as error, translate_worker_errors():
        list(loader)
    message = str(error.value)
    assert "DataLoader worker (pid" in message or "worker died" in message
    assert "lower dataloader.num_workers" in message
    assert "\n" not in message
    assert not isinstance(error.value, InputError)
    with pytest.raises(RuntimeError, match="mine"), translate_worker_errors():
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), r"cannot start worker processes: .*No space left .*num_workers=0"),
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Bus error."), r"signal: Bus error\.; usually"),
    ],
)
def test_workers_that_cannot_be_started_or_end_meanwhile(make_folder, monkeypatch, error, message):
    monkeypatch.setattr("torch.utils.data.DataLoader.__iter__", Mock(side_effect=error))
    with pytest.raises(SeamsegError, match=message):
        list(loader_of(dataset(make_folder(SIZES)), 1))


class _Unsendable(torch.utils.data.Dataset):
    def __len__(self):
        return 1  # the signal may come within the line of a second batch

    def __getitem__(self, index):
        return self

    def __reduce__(self):
        raise RuntimeError("unable to allocate shared memory(shm)\nfor file: No space left on device (28)")


def test_a_batch_that_cannot_be_sent(capfd):
    """A queue only prints the error, and the main process would wait for the batch forever."""
    loader = BatchLoader(_Unsendable(), batch_size=None, num_workers=1, worker_init_fn=begin_worker)
    with pytest.raises(SeamsegError, match=r"DataLoader worker .*/dev/shm"):
        list(loader)
    sent = "cannot send: unable to allocate shared memory(shm) for file: No space left on device (28)\n"
    assert sent in capfd.readouterr().err


def dataset(root, split="train", kind=PanopticDataset, **options):
    return kind(root, split, train_transform(16, 64, random_flip=True, random_scale=(0.5, 2)), **options)


def same(a, b):
    if isinstance(a, PackedSequence):
        return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
    return a == b


def assert_same(a, b):
    assert all(same(vars(a)[k], vars(b)[k]) for k in vars(a))


@pytest.mark.parametrize("workers", [0, 1])
def test_worker_errors_are_one_line(make_folder, workers):
    root = make_folder()
    (root / "img" / "im1.png").write_bytes(b"")
    with pytest.raises(InputError) as error:
        list(loader_of(dataset(root), workers, batch_size=1))
    assert str(error.value) == f"{root / 'img' / 'im1.png'}: the file is empty (0 bytes)"
