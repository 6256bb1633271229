"""The images of a process, and their decoding in threads; no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from PIL import Image

from seamseg.inference.images import PreparedImage
from seamseg.predict.manifest import Done
from seamseg.predict.part import Part
from seamseg.predict.sources.base import Container, Source, SourceItem, of_part
from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.parallel import threaded_map
from seamseg.utils.process_settings import return_memory
from seamseg.utils.urls import describe_error

READ_AHEAD_BYTES = 512 << 20
"""Limit of decoded images that wait, over all decoders of a process; each may hold one image more than its part."""


class DecodedImage(NamedTuple):
    """An image, the stamp of its file, and its prepared image, or the reason why it cannot be decoded."""

    source: Source
    stamp: str
    image: PreparedImage | str


class WorkerFailure(NamedTuple):
    """A message about a decoder that died, and the images to skip from now on, with the reason."""

    message: str
    skipped: list[tuple[Source, str]]


class DecoderShare:
    """The images of one process; its decoders divide them further.

    Single images are assigned in turn. If there are enough containers for all decoders, each reads whole ones;
    otherwise each decoder goes through every container and decodes its part of the images. The run of a part has the
    images and containers of :func:`seamseg.predict.sources.base.of_part`.

    Parameters
    ----------
    sources : all, the same list in every process
    prepare : makes network inputs of decoded images
    done : images that earlier runs have done, the same in every process
    rank, size : rank of this process, and number of processes
    part : the images of this run; None for all
    """

    def __init__(
        self,
        sources: Sequence[Source | Container],
        prepare: Callable[[Image.Image], PreparedImage],
        done: Mapping[str, Done],
        rank: int = 0,
        size: int = 1,
        part: Part | None = None,
    ) -> None:
        mine = of_part(sources, part)
        self.photos = [s for s in mine if isinstance(s, Source) and not _is_done(s, s.stamp, done)]
        self.containers = [s for s in mine if not isinstance(s, Source)]
        self.divided_by = part if len(self.containers) == sum(not isinstance(s, Source) for s in sources) else None
        self.mine = self.photos[rank::size]
        self.prepare = prepare
        self.done = done
        self.rank = rank
        self.size = size
        self.skip: Collection[str] = ()

    def items(self, worker: int = 0, workers: int = 1) -> Iterator[tuple[str, SourceItem]]:
        """Iterate over the images of a decoder, each with its stamp; decode each before the next is requested."""
        for source in self.mine[worker::workers]:
            if source.name not in self.skip:
                yield source.stamp(), source
        readers, me = self.size * workers, self.rank + self.size * worker
        whole = len(self.containers) >= readers
        for number, container in enumerate(self.containers):
            if whole and number % readers != me:
                continue
            stamp = container.stamp()
            for position, item in enumerate(self._missing(container, stamp), 1):
                if (whole or position % readers == me) and item.source.name not in self.skip:
                    yield stamp, item

    def _missing(self, container: Container, stamp: str) -> Iterator[SourceItem]:
        """Iterate over the images of a container that are not done."""
        for count, item in enumerate(container.items()):
            if self.divided_by is not None and not self.divided_by.has(count):
                continue
            if not _is_done(item.source, lambda: stamp, self.done):
                yield item

    def decode(self, stamp: str, item: SourceItem) -> DecodedImage:
        """Decode and prepare an image."""
        source = item.source
        try:
            image = self.prepare(item.open())
            return_memory(image.size[0] * image.size[1])
            return DecodedImage(source, stamp, image)
        except UnreadableImage as error:  # its text names the image
            return DecodedImage(source, stamp, str(error))
        except InputError as error:
            return DecodedImage(source, stamp, f"{source}: {error}")
        except Exception as error:  # one image, for which the memory may not suffice, must not end the run
            return DecodedImage(source, stamp, f"{source}: cannot be decoded: {describe_error(error)}")


class Decoders(Protocol):
    """Reads the images of a share."""

    share: DecoderShare

    def read(self, skip: Collection[str]) -> Iterator[DecodedImage]:
        """Decode the images except those named; may be called again after :meth:`handle_worker_failure`."""

    def handle_worker_failure(self, error: BaseException) -> WorkerFailure | None:
        """Handle an error that was raised while images were read; None if it is not about a dead decoder."""


class ThreadDecoders:
    """Decodes in threads of this process: Pillow releases the GIL. An image that kills a decoder ends the run.

    Parameters
    ----------
    share : share of this process
    workers : threads; 0 for none
    """

    def __init__(self, share: DecoderShare, workers: int) -> None:
        self.share = share
        self.workers = workers

    def read(self, skip: Collection[str]) -> Iterator[DecodedImage]:
        """Decode the images except those named, in order; those of videos and shards in this thread."""
        self.share.skip = skip
        yield from threaded_map(
            lambda one: one if isinstance(one, DecodedImage) else self.share.decode(*one),
            self._photos(),
            self.workers,
            lambda one: one.image.nbytes if isinstance(one.image, PreparedImage) else 0,
            READ_AHEAD_BYTES,
        )

    def _photos(self) -> Iterator[DecodedImage | tuple[str, SourceItem]]:
        for stamp, item in self.share.items():
            yield (stamp, item) if isinstance(item, Source) else self.share.decode(stamp, item)

    def handle_worker_failure(self, error: BaseException) -> WorkerFailure | None:
        """Return None: threads do not die."""
        return None


def retry_on_worker_death(job: Callable[[], object]) -> None:
    """Run a repeatable job; a DataLoader reports the death of another worker by an error anywhere in the process."""
    for _ in range(8):
        try:
            job()
            return
        except RuntimeError:
            continue


def _is_done(source: Source, stamp: Callable[[], str], done: Mapping[str, Done]) -> bool:
    known = done.get(source.name)
    return known is not None and known.relative == source.relative and known.stamp == stamp()
