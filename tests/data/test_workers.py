"""The processes that read images: persistent or not, and dying."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import seamseg
from data.test_batches import assert_same
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import explained_deaths, index_sampler, set_epoch, train_loader
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import TrainTransform
from seamseg.utils.errors import InputError, SeamsegError

SIZES = [(12, 20), (20, 12), (14, 14), (10, 18), (9, 30), (8, 12)]


def loader_of(data, workers, **options):
    return train_loader(data, DistributedARBatchSampler(data.img_sizes, 2), num_workers=workers, **options)


def dataset(root, kind=PanopticDataset):
    return kind(root, "train", TrainTransform(16, 64, random_flip=True, random_scale=(0.5, 2)))


def test_workers_that_live_on_load_the_same(make_folder):
    data = dataset(make_folder(SIZES))
    plain, fresh, lasting = (
        loader_of(data, n, persistent_workers=p, prefetch=3, class_uniform=0.5)
        for n, p in ((0, True), (2, False), (2, True))
    )
    pids = []
    for epoch in (0, 1, 4, 2):
        batches = []
        for loader in (plain, fresh, lasting):
            set_epoch(loader, epoch)
            batches.append(list(loader))
        pids.append([worker.pid for worker in lasting._workers])
        for a, b, c in zip(*batches, strict=True):
            assert_same(a, b)
            assert_same(a, c)
    assert pids[0] == pids[1] == pids[2] and len(pids[0]) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_begins_in_the_middle_gives_the_rest(make_folder, workers):
    """Nothing of an item depends on the batches before it."""

    class Late(DistributedARBatchSampler):
        begin = 0

        def __iter__(self):
            return iter(list(super().__iter__())[self.begin :])

    data = dataset(make_folder(SIZES))
    whole, rest = (
        train_loader(data, Late(data.img_sizes, 2), num_workers=workers, class_uniform=0.5, persistent_workers=True)
        for _ in range(2)
    )
    index_sampler(rest).begin = 1
    for loader in (whole, rest):
        set_epoch(loader, 2)
    for a, b in zip(list(whole)[1:], rest, strict=True):
        assert_same(a, b)


def test_an_epoch_left_early_does_not_show_in_the_next(make_folder):
    data = dataset(make_folder(SIZES))
    plain, lasting = loader_of(data, 0), loader_of(data, 1, persistent_workers=True)
    set_epoch(lasting, 0)
    next(iter(lasting))
    for loader in (plain, lasting):
        set_epoch(loader, 1)
    for a, b in zip(plain, lasting, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_draws_nothing_from_the_global_source(make_folder, workers):
    data = dataset(make_folder(SIZES))
    state = torch.get_rng_state()
    for epoch in range(2):
        loader = loader_of(data, workers, class_uniform=0.5)
        set_epoch(loader, epoch)
        list(loader)
    assert torch.equal(torch.get_rng_state(), state)


class Dying(PanopticDataset):
    """Kills the process that reads image 4."""

    how = signal.SIGKILL

    def read(self, index, at_least=None):
        if index == 4:
            os.kill(os.getpid(), self.how)
            time.sleep(60)
        return super().read(index, at_least)


class Crashing(Dying):
    how = signal.SIGSEGV


@pytest.mark.parametrize(
    ("kind", "name", "advice"), [(Dying, "SIGKILL", "ran out of memory"), (Crashing, "SIGSEGV", "save it anew")]
)
def test_a_dead_worker_is_explained(make_folder, kind, name, advice):
    root = make_folder(SIZES)
    data = dataset(root, kind)
    loader = loader_of(data, 2, persistent_workers=True)
    set_epoch(loader, 0)
    with pytest.raises(SeamsegError) as error, explained_deaths(loader):
        list(loader)
    message = str(error.value)
    assert message.startswith(f"a process that loads images was killed by signal {name} while it read ")
    assert str(root / "img" / "im4.png") in message and advice in message and "\n" not in message
    assert not isinstance(error.value, InputError)


def test_a_worker_that_dies_while_others_work_is_explained(make_folder):
    """The signal comes in the middle of what the main process does with a batch."""
    data = dataset(make_folder(SIZES), Dying)
    loader = loader_of(data, 1, prefetch=8)
    set_epoch(loader, 0)
    with pytest.raises(SeamsegError, match=r"SIGKILL while it read .*im4.png"), explained_deaths(loader):
        for _ in loader:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                time.sleep(0.01)


HOLDING = """
import sys
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import train_loader
from seamseg.data.samplers import ARBatchSampler
from seamseg.data.transforms import TrainTransform

data = PanopticDataset(sys.argv[1], "train", TrainTransform(16, 64))
held = [iter(train_loader(data, ARBatchSampler(data.img_sizes, 1), 1, persistent_workers=p)) for p in (True, False)]
print([len(next(batches)) for batches in held])
"""


def test_a_program_ends_while_it_holds_workers(make_folder):
    """They do not listen to the signal with which Python ends them."""
    environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
    command = [sys.executable, "-c", HOLDING, str(make_folder(SIZES))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 1]\n", "")


def test_other_errors_pass(make_folder):
    loader = loader_of(dataset(make_folder(SIZES)), 0)
    with pytest.raises(RuntimeError, match="mine"), explained_deaths(loader):
        raise RuntimeError("mine")


def test_a_batch_that_breaks_with_its_worker(make_folder):
    """Its tensors are handed over by the worker itself, which may be gone: an error of the connection comes first."""
    data = dataset(make_folder(SIZES), Dying)
    loader = loader_of(data, 1)
    killed = torch.multiprocessing.get_context("fork").Process()
    killed.run = lambda: os.kill(os.getpid(), signal.SIGKILL)
    killed.start()
    loader._workers = (killed,)
    loader.worker_init_fn.reading[0] = 4
    with pytest.raises(SeamsegError, match=r"SIGKILL while it read .*im4.png"), explained_deaths(loader):
        raise ConnectionResetError(104, "Connection reset by peer")
    loader._workers = ()
    with pytest.raises(ConnectionResetError), explained_deaths(loader):
        raise ConnectionResetError(104, "of another cause")
