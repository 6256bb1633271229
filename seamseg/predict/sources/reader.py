"""The photos of a process, decoded by other processes, one of which may be killed without an end to the run."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from seamseg.data.workers import dead_workers, death_of, ignore_foreign_signals, ignore_signals_in_children
from seamseg.inference.images import Photo, PhotoTransform, Unreadable, as_is
from seamseg.predict.manifest import Done
from seamseg.predict.sources.base import Container, Item, Source
from seamseg.utils.errors import InputError, SeamsegError, UnreadableImage
from seamseg.utils.urls import explain

_NOTE_BYTES = 4096
_NAMELESS_DEATHS = 3
"""Deaths of decoders that were reading nothing, after which the run ends."""

READ_AHEAD_BYTES = 512 << 20
"""Of decoded photos that wait, over all decoders of a process; each may hold one photo more than its part."""

Read = tuple[Source, str, Photo | Unreadable]
"""A photo, the stamp of its file, and what became of it"""


class Share(IterableDataset):
    """The photos that fall to one process; its decoders (the workers of a DataLoader) share them out further.

    Single photos are dealt out one by one. Of containers each decoder reads whole ones if there are enough for all;
    otherwise every decoder goes through each container and decodes its part of the photos.

    Parameters
    ----------
    sources : all, the same list in every process
    decoder : makes photos of pictures
    done : photos that were done before this run, the same in every process
    rank, size : of the processes
    limit : photos of each container at most
    """

    def __init__(
        self,
        sources: Sequence[Source | Container],
        decoder: PhotoTransform,
        done: Mapping[str, Done],
        rank: int = 0,
        size: int = 1,
        limit: int | None = None,
    ) -> None:
        self.photos = [s for s in sources if isinstance(s, Source) and not _is_done(s, s.stamp, done)]
        self.containers = [s for s in sources if not isinstance(s, Source)]
        self.mine = self.photos[rank::size]
        self.decoder = decoder
        self.done = done
        self.rank = rank
        self.size = size
        self.limit = limit
        self.leave_out: Collection[str] = ()
        self.notes = torch.zeros(0, _NOTE_BYTES, dtype=torch.uint8)
        self.ahead = Ahead(0)

    def __iter__(self) -> Iterator[tuple[int, Read]]:
        """The photos, each with the number of the decoder that has read it."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        note = self.notes[worker] if worker < len(self.notes) else None
        for source in self.mine[worker::workers]:
            if source.name not in self.leave_out:
                yield self._read(worker, source.stamp(), source, note)
        readers, me = self.size * workers, self.rank + self.size * worker
        whole = len(self.containers) >= readers
        for number, container in enumerate(self.containers):
            if whole and number % readers != me:
                continue
            stamp, count, left = container.stamp(), 0, 0
            for item in container.items():
                count += 1
                if self.limit is not None and count > self.limit:
                    break
                if _is_done(item.source, lambda stamp=stamp: stamp, self.done):  # type: ignore[misc]
                    continue
                left += 1
                if (whole or left % readers == me) and item.source.name not in self.leave_out:
                    yield self._read(worker, stamp, item, note)

    def _read(self, worker: int, stamp: str, item: Item, note: torch.Tensor | None) -> tuple[int, Read]:
        source = item.source
        self.ahead.wait(worker)
        _write_note(note, source)
        try:
            photo = self.decoder(item.open())
        except UnreadableImage as error:  # names it
            return worker, (source, stamp, Unreadable(str(error)))
        except InputError as error:
            return worker, (source, stamp, Unreadable(f"{source}: {error}"))
        except Exception as error:  # one photo, which is named, must not end the run: too little memory for it, say
            return worker, (source, stamp, Unreadable(f"{source}: cannot be decoded: {explain(error)}"))
        finally:
            _write_note(note, None)
        self.ahead.decoded(worker, bytes_of_photo(photo))
        return worker, (source, stamp, photo)


class Ahead:
    """What decoders have decoded and the process that reads from them has not yet taken, in bytes.

    Each number has one writer, so no lock is needed, which a decoder that is killed would keep.

    Parameters
    ----------
    workers : decoders
    """

    def __init__(self, workers: int) -> None:
        self.parent = os.getpid()
        self._part = READ_AHEAD_BYTES // max(workers, 1)
        self._decoded, self._taken = (torch.zeros(workers, dtype=torch.int64).share_memory_() for _ in range(2))

    def wait(self, worker: int) -> None:
        """In a decoder: until there is room; at once if it holds nothing, so that the others can never block it."""
        while worker < len(self._taken) and self._decoded[worker] - self._taken[worker] >= self._part:
            if os.getppid() != self.parent:
                return
            time.sleep(0.005)

    def decoded(self, worker: int, count: int) -> None:
        """In a decoder: it has so many bytes more to hand over."""
        if worker < len(self._decoded):
            self._decoded[worker] += count

    def taken(self, worker: int, count: int) -> None:
        """In the process that reads: it has got them."""
        if worker < len(self._taken):
            self._taken[worker] += count

    def release(self) -> None:
        """In the process that reads: nothing is waited for any more."""
        self._taken.fill_(1 << 60)


def bytes_of_photo(photo: Photo) -> int:
    """Memory of a decoded photo."""
    return photo.image.nbytes + (0 if photo.rgb is None else photo.rgb.nbytes)


class Death(NamedTuple):
    """What became of a decoder, for people, and the photos that are not to be tried again, with the reason."""

    story: str
    left_out: list[tuple[Source, str]]


class Decoders:
    """Reads a share with some processes.

    A decoder that is killed while it reads a photo is replaced, and the photo tried again; if it happens a second time,
    the photo is left out.

    Parameters
    ----------
    share : of this process
    workers : processes that decode; 0 decodes in this one
    """

    def __init__(self, share: Share, workers: int) -> None:
        self.share = share
        self.workers = workers if share.containers else min(workers, len(share.mine))
        self._deaths: Counter[str] = Counter()
        self._nameless = 0
        self._iterator: object = None
        share.notes = torch.zeros(self.workers, _NOTE_BYTES, dtype=torch.uint8).share_memory_()

    def read(self, leave_out: Collection[str]) -> Iterator[Read]:
        """The photos but for those named; may be called again after an error that :meth:`bury` has dealt with."""
        self.share.leave_out = leave_out
        self.share.notes.zero_()
        if not self.share.mine and not self.share.containers:
            return
        loader: DataLoader = DataLoader(
            self.share,
            batch_size=None,
            num_workers=self.workers,
            collate_fn=as_is,
            worker_init_fn=ignore_foreign_signals if self.workers else None,
        )
        ahead = self.share.ahead = Ahead(self.workers)
        with ignore_signals_in_children():
            self._iterator = iter(loader)
        try:
            for worker, read in self._iterator:  # type: ignore[attr-defined]
                if isinstance(read[2], Photo):
                    ahead.taken(worker, bytes_of_photo(read[2]))
                yield read
        finally:
            ahead.release()
        self._iterator = None

    def bury(self, error: BaseException) -> Death | None:
        """Deal with an error that came while photos were read, at any place of this process.

        Returns
        -------
        what happened; None if the error is not about a dead decoder

        Raises
        ------
        SeamsegError
            if it makes no sense to go on
        """
        workers = getattr(self._iterator, "_workers", ())
        dead = dead_workers(error, workers)
        if not dead:
            return None
        for number in dead:
            workers[number].join(timeout=1)
        codes = {code for number in dead if (code := workers[number].exitcode)}
        read = [source for number in dead if (source := _read_note(self.share.notes[number])) is not None]
        self._close()
        what = death_of(codes)
        story = f"a process that decodes images {what}" + (
            f" while it read {', '.join(map(str, read))}" if read else ""
        )
        if -getattr(signal, "SIGBUS", 0) in codes:
            raise SeamsegError(
                f"{story}: shared memory is full; enlarge /dev/shm (docker run --shm-size), or lower --workers"
            ) from error
        self._nameless += not read
        if self._nameless > _NAMELESS_DEATHS:
            raise SeamsegError(
                f"{story}, for the {self._nameless}th time while it read nothing; usually the machine is out of "
                "memory: lower --workers; the same command goes on where it was"
            ) from error
        self._deaths.update(source.name for source in read)
        left_out = [
            (source, f"{source}: the process that decoded it {what}, twice")
            for source in read
            if self._deaths[source.name] > 1
        ]
        return Death(f"{story}; it is replaced", left_out)

    def _close(self) -> None:
        # its processes would decode on
        self.share.ahead.release()
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = None
        if shutdown is not None:
            despite_deaths(shutdown)


def despite_deaths(job: Callable[[], object]) -> None:
    """Run a job that may be run twice; a DataLoader tells the death of a further worker by an error at any place."""
    for _ in range(8):
        try:
            job()
            return
        except RuntimeError:
            continue


def _is_done(source: Source, stamp: Callable[[], str], done: Mapping[str, Done]) -> bool:
    known = done.get(source.name)
    return known is not None and known.relative == source.relative and known.stamp == stamp()


def _write_note(note: torch.Tensor | None, source: Source | None) -> None:
    if note is None:
        return
    text = "" if source is None else "\0".join((source.name, source.relative, str(source)))
    data = text.encode("utf-8", "surrogateescape")[: _NOTE_BYTES - 1] + b"\0"
    note[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    note[len(data) :] = 0


def _read_note(note: torch.Tensor) -> Source | None:
    text = bytes(note.tolist()).rstrip(b"\0").decode("utf-8", "surrogateescape")
    if text.count("\0") != 2:
        return None
    name, relative, place = text.split("\0")
    return Source(Path(place), name, relative, place)
