"""A DataLoader for :class:`PanopticDataset`: workers that end in order, batches as `Batch`, one-line errors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import queues
from random import Random
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from seamseg.data.reader import Reader
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.distributed import World
from seamseg.utils.errors import SeamsegError, one_line
from seamseg.utils.output import echo
from seamseg.utils.parallel import available_cores
from seamseg.utils.process import begin_worker_process, block_stop_signals


class BatchLoader(DataLoader[Any]):
    """A DataLoader that re-raises errors of its workers as they were raised, without a traceback in the message."""

    def __init__(self, dataset: Dataset[Any], num_workers: int = 0, **options: Any) -> None:
        # workers of a fork server have another parent, so that they would outlive this process
        context = "fork" if num_workers and sys.platform == "linux" else None
        super().__init__(dataset, num_workers=num_workers, multiprocessing_context=context, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        sampler = self.batch_sampler
        if isinstance(sampler, DistributedARBatchSampler) and self.generator is not None:
            # workers of each process and epoch draw other random numbers, also after a resume
            words = f"{sampler.seed}/{sampler.epoch}/{sampler.rank}"
            self.generator.manual_seed(Random(words).getrandbits(63))
        with translate_worker_errors():
            try:
                with block_stop_signals():
                    iterator = super().__iter__()
            except (OSError, RuntimeError) as error:
                if is_dead_worker(error):
                    raise
                raise SeamsegError(
                    f"cannot start worker processes: {str(error)[:200]}; enlarge /dev/shm (docker run --shm-size) or "
                    "what the error names, or use `dataloader.num_workers=0`"
                ) from error
            try:
                yield from iterator
            except (ConnectionError, EOFError) as error:
                raise worker_failure("a data loading worker died") from error
            except SeamsegError as error:
                # torch re-raises it with its whole traceback as the message; the last line ends with ours
                name = f"{type(error).__module__}.{type(error).__qualname__}: "
                raise type(error)(str(error).rpartition(name)[2].strip()) from None


def train_loader(
    dataset: Dataset[Any],
    batch_sampler: DistributedARBatchSampler,
    keys: Any,
    world: World,
    collate_fn: Callable[[Sequence[Any]], Any] | None = None,
) -> BatchLoader:
    """Return a loader of batches in the order of a sampler; set its epoch before each pass.

    `keys` are `num_workers`, 0 to read the images in this process, `persistent_workers`, and `prefetch`, the number of
    batches that each worker prepares ahead: the batches do not depend on them. torch's global RNG is not used. The data
    set accepts :class:`seamseg.data.samplers.SampleIndex`. `collate_fn` defaults to :func:`collate`.
    """
    workers, prefetch = min(keys.num_workers, available_cores()), keys.prefetch
    return BatchLoader(
        dataset,
        batch_sampler=batch_sampler,
        num_workers=workers,
        pin_memory=world.device.type == "cuda",
        collate_fn=collate_fn or collate,
        worker_init_fn=begin_worker,
        persistent_workers=keys.persistent_workers and workers > 0,
        prefetch_factor=prefetch if workers else None,
        # otherwise each pass draws from the global RNG, and a resumed run differs from an uninterrupted one
        generator=torch.Generator(),
    )


def shard_loader(dataset: Dataset[Any], num_workers: int, world: World, **options: Any) -> BatchLoader:
    """Return the loader of the samples that this process alone reads, in order; `options` are those of a DataLoader.

    Each sample belongs to one process: some have one more, so nothing inside the loop may be a collective call.
    """
    sampler = range(world.rank, len(dataset), world.size)  # type: ignore[arg-type]
    workers = min(num_workers, available_cores(), len(sampler))
    return BatchLoader(dataset, sampler=sampler, num_workers=workers, worker_init_fn=begin_worker, **options)


def index_sampler(loader: DataLoader[Any]) -> DistributedARBatchSampler:
    """Return the sampler of a :func:`train_loader`: it decides the order, and where an epoch starts."""
    assert isinstance(loader.batch_sampler, DistributedARBatchSampler)
    return loader.batch_sampler


def collate(items: Sequence[dict[str, Any]]) -> Batch:
    """Collate items of :class:`PanopticDataset` without padding; the network pads when it needs one tensor."""
    masks = [item["msk"] for item in items]
    if len({mask.dtype for mask in masks}) > 1:
        masks = [mask.int() for mask in masks]  # images with few ids have uint8 masks
    return Batch(
        images=PackedSequence([item["img"] for item in items]),
        masks=PackedSequence(masks),
        categories=PackedSequence([item["cat"] for item in items]),
        iscrowd=PackedSequence([item["iscrowd"] for item in items]),
        boxes=PackedSequence([item["bbx"] for item in items]),
        ids=[item["id"] for item in items],
        original_sizes=[item["size"] for item in items],
        deferred=[item["deferred"] for item in items] if "deferred" in items[0] else None,
        maps={name: PackedSequence([item["maps"][name] for item in items]) for name in items[0].get("maps", ())},
    ).with_target_info()


def begin_worker(worker: int = 0) -> None:
    """Prepare a worker process, to ignore signals and to end if it cannot send; a DataLoader's `worker_init_fn`."""
    begin_worker_process()
    reader = getattr(getattr(get_worker_info(), "dataset", None), "reader", None)
    if isinstance(reader, Reader):
        reader.begin_worker()
    queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]


def _end_worker(error: Exception, batch: object) -> None:
    """End a worker whose batch is lost, mostly because shared memory is full, for which the main process would wait."""
    if isinstance(error, ConnectionError):
        # the main process has ended, or reads no more
        os._exit(1)
    echo(f"a data loading worker cannot send: {one_line(error)[:300]}", file=sys.stderr, flush=True)
    # as a write to full shared memory does; Windows lacks SIGBUS
    os.kill(os.getpid(), getattr(signal, "SIGBUS", signal.SIGTERM))


def is_dead_worker(error: BaseException) -> bool:
    """Return whether an error is torch's about the death of a worker."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Make one line of the error about a dead worker, which may come at any place of the main process."""
    try:
        yield
    except RuntimeError as error:
        if not is_dead_worker(error):
            raise
        raise worker_failure(one_line(error)) from error


def worker_failure(what: str) -> SeamsegError:
    """Return the error for the death of a worker."""
    return SeamsegError(
        f"{what}; usually the machine or /dev/shm (docker run --shm-size) ran out of memory: lower "
        "dataloader.num_workers or dataloader.prefetch; otherwise check the images (`seamseg prepare --check`); "
        "`resume=auto` continues"
    )
