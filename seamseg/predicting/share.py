"""The images of a process, and their decoding in threads; no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from PIL import Image

from seamseg.inference.images import PreparedImage
from seamseg.predicting.manifest import Done
from seamseg.predicting.source import Source
from seamseg.predicting.video import Video, VideoFrame
from seamseg.utils.errors import InputError, UnreadableImage, describe_error
from seamseg.utils.image_memory import keep_turn
from seamseg.utils.parallel import threaded_map
from seamseg.utils.process_settings import return_memory

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

    Single images are assigned in turn. If there are enough videos for all decoders, each reads whole ones; otherwise
    each decoder goes through every video and decodes its part of the frames.

    Parameters
    ----------
    sources : all, the same list in every process
    prepare : makes network inputs of decoded images
    done : images that earlier runs have done, the same in every process
    rank, size : rank of this process, and number of processes
    """

    def __init__(
        self,
        sources: Sequence[Source | Video],
        prepare: Callable[[Image.Image], PreparedImage],
        done: Mapping[str, Done],
        rank: int = 0,
        size: int = 1,
    ) -> None:
        photos = [s for s in sources if isinstance(s, Source) and not _is_done(s, s.stamp, done)]
        self.videos = [s for s in sources if isinstance(s, Video)]
        self.mine = photos[rank::size]
        self.prepare = prepare
        self.done = done
        self.rank = rank
        self.size = size
        self.skip: Collection[str] = ()

    def items(self, worker: int = 0, workers: int = 1) -> Iterator[tuple[str, Source | VideoFrame]]:
        """Iterate over the images of a decoder, each with its stamp; decode each before the next is requested."""
        for source in self.mine[worker::workers]:
            if source.name not in self.skip:
                yield source.stamp(), source
        readers, me = self.size * workers, self.rank + self.size * worker
        whole = len(self.videos) >= readers
        for number, video in enumerate(self.videos):
            if whole and number % readers != me:
                continue
            stamp = video.stamp()
            for position, item in enumerate(self._missing(video, stamp), 1):
                if (whole or position % readers == me) and item.source.name not in self.skip:
                    yield stamp, item

    def _missing(self, video: Video, stamp: str) -> Iterator[Source | VideoFrame]:
        return (item for item in video.items() if not _is_done(item.source, lambda: stamp, self.done))

    def decode(self, stamp: str, item: Source | VideoFrame) -> DecodedImage:
        """Decode and prepare an image."""
        source = item.source
        try:
            with keep_turn():
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

    def written(self, source: Source) -> None:
        """Take notice that the outputs of an image are written, or failed; called by any thread."""

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
        """Decode the images except those named, in order; frames of videos in this thread."""
        self.share.skip = skip
        yield from threaded_map(
            lambda one: one if isinstance(one, DecodedImage) else self.share.decode(*one),
            self._photos(),
            self.workers,
            lambda one: one.image.nbytes if isinstance(one.image, PreparedImage) else 0,
            READ_AHEAD_BYTES,
        )

    def _photos(self) -> Iterator[DecodedImage | tuple[str, Source | VideoFrame]]:
        for stamp, item in self.share.items():
            yield (stamp, item) if isinstance(item, Source) else self.share.decode(stamp, item)

    def written(self, source: Source) -> None:
        """Do nothing."""

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
