"""DataLoader workers: persistent or not, and their failure."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import (
    BatchLoader,
    LoaderOptions,
    collate,
    index_sampler,
    set_epoch,
    train_loader,
    translate_worker_errors,
)
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import AugmentationOptions, TrainTransform
from seamseg.data.workers import WorkerSeed, _end_worker, begin_worker, starting_workers
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.errors import InputError, SeamsegError

SIZES = [(12, 20), (20, 12), (14, 14), (10, 18), (9, 30), (8, 12)]


def loader_of(data, workers, **options):
    return train_loader(
        data, DistributedARBatchSampler(data.img_sizes, 2), LoaderOptions(num_workers=workers, **options)
    )


def test_persistent_workers_load_the_same_batches(make_folder):
    data = dataset(make_folder(SIZES))
    plain, fresh, lasting = (
        loader_of(data, n, persistent_workers=p, prefetch=3, class_uniform=0.5)
        for n, p in ((0, True), (2, False), (2, True))
    )
    pids = []
    # an abandoned epoch does not affect the next
    set_epoch(lasting, 5)
    next(iter(lasting))
    for epoch in (0, 4):
        batches = []
        for loader in (plain, fresh, lasting):
            set_epoch(loader, epoch)
            batches.append(list(loader))
        pids.append([worker.pid for worker in lasting._workers])
        for a, b, c in zip(*batches, strict=True):
            assert_same(a, b)
            assert_same(a, c)
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_started_in_the_middle_yields_the_rest(make_folder, workers):
    """A sample does not depend on the batches before it, nor does loading advance the global random numbers."""

    class Late(DistributedARBatchSampler):
        begin = 0

        def __iter__(self):
            return iter(list(super().__iter__())[self.begin :])

    data = dataset(make_folder(SIZES))
    options = LoaderOptions(num_workers=workers, class_uniform=0.5, persistent_workers=True)
    state = torch.get_rng_state()
    whole, rest = (train_loader(data, Late(data.img_sizes, 2), options) for _ in range(2))
    index_sampler(rest).begin = 1
    for loader in (whole, rest):
        set_epoch(loader, 2)
    for a, b in zip(list(whole)[1:], rest, strict=True):
        assert_same(a, b)
    assert torch.equal(torch.get_rng_state(), state)


class Dying(PanopticDataset):
    """Kills the process that reads image 4."""

    how = signal.SIGKILL

    def _read_image(self, index, at_least=None):
        if index == 4:
            os.kill(os.getpid(), self.how)
            time.sleep(60)
        return super()._read_image(index, at_least)


class Crashing(Dying):
    how = signal.SIGSEGV


@pytest.mark.parametrize(
    ("kind", "name", "advice"), [(Dying, "SIGKILL", "ran out of memory"), (Crashing, "SIGSEGV", "replace the file")]
)
def test_error_of_a_killed_worker(make_folder, kind, name, advice):
    root = make_folder(SIZES)
    data = dataset(root, kind=kind)
    loader = loader_of(data, 2, persistent_workers=True)
    set_epoch(loader, 0)
    with pytest.raises(SeamsegError) as error, translate_worker_errors(loader):
        list(loader)
    message = str(error.value)
    assert message.startswith(f"a data loading worker was killed by signal {name} while reading ")
    assert str(root / "img" / "im4.png") in message
    assert advice in message
    assert "\n" not in message
    assert not isinstance(error.value, InputError)


def test_connection_error_of_a_killed_worker(make_folder):
    """Tensors are received from the worker itself; its connection breaks before it has ended."""
    loader = loader_of(dataset(make_folder(SIZES), kind=Dying), 1)
    killed = torch.multiprocessing.get_context("fork").Process()
    killed.run = lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL))
    killed.start()
    loader._workers = (killed,)
    loader.worker_init_fn.reading[0] = 4
    with pytest.raises(SeamsegError, match=r"SIGKILL while reading .*im4.png"), translate_worker_errors(loader):
        raise ConnectionResetError(104, "Connection reset by peer")
    loader._workers = ()
    for other in (ConnectionResetError(104, "of another cause"), RuntimeError("mine")):
        with pytest.raises(type(other), match=r"of another cause|mine"), translate_worker_errors(loader):
            raise other


def test_workers_that_cannot_be_started(make_folder, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.data.DataLoader.__iter__", full)
    with pytest.raises(SeamsegError, match=r"cannot start worker processes: .*No space left .*num_workers=0"):
        list(loader_of(dataset(make_folder(SIZES)), 1))
    # those that have died are reported with the file that they were reading
    for error in (ConnectionResetError(), RuntimeError("DataLoader worker (pid 3) is killed by signal: Bus error.")):
        with pytest.raises(type(error)), starting_workers("workers"):
            raise error


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
    with pytest.raises(SeamsegError, match="SIGBUS; shared memory is full: enlarge /dev/shm"):
        list(loader)
    sent = "cannot send: unable to allocate shared memory(shm) for file: No space left on device (28)\n"
    assert sent in capfd.readouterr().err


def test_a_batch_for_which_nobody_waits_ends_a_worker_quietly(capfd):
    worker = multiprocessing.get_context("fork").Process(target=_end_worker, args=(BrokenPipeError(32, "Broken"), None))
    worker.start()
    worker.join()
    assert worker.exitcode == 1
    assert not capfd.readouterr().err


# --- Batches of samples


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
