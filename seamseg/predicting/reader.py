"""Read the images of a process, decoded ahead in threads; no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from seamseg.data.input_size import InputSize
from seamseg.inference.images import PreparedImage, prepare_image
from seamseg.maps.images import pixel_count
from seamseg.predicting.folder import Done
from seamseg.predicting.source import Source, Video, VideoFrame
from seamseg.utils.distributed import process_count
from seamseg.utils.errors import InputError, UnreadableImage, describe_error
from seamseg.utils.limits import is_large
from seamseg.utils.parallel import threaded_map
from seamseg.utils.process_settings import return_memory

READ_AHEAD_BYTES = 512 << 20
"""Limit of decoded images that wait; each thread may hold one image more."""


class DecodedImage(NamedTuple):
    """An image, the stamp of its file, and what is prepared of it."""

    source: Source
    stamp: str
    image: PreparedImage


class UnreadableSource(NamedTuple):
    """An image that cannot be decoded, and why."""

    source: Source
    reason: str


@contextmanager
def first_ahead(sources: list[Source | Video]) -> Iterator[None]:
    """Decode the first of the images in a thread, unless it is large, while the model is opened in a `with` block."""
    first = sources[0]
    # each of several processes has another first image
    if isinstance(first, Video) or process_count() > 1 or is_large(header_pixels(first) or 0):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        sources[0] = replace(first, stamped=first.stamp(), ahead=[pool.submit(first.open)])
        yield


class ImageReader:
    """Decodes the images of one process in threads: Pillow and PyAV release the GIL.

    Each process has the same `sources` and `done` (what earlier runs have done). Single images are assigned to the
    processes in turn. If there are enough videos for all processes, each reads whole ones; otherwise each goes through
    every video and converts its part of the frames.
    """

    def __init__(
        self,
        sources: Sequence[Source | Video],
        input_size: InputSize,
        keep_rgb: bool,
        done: Done,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self.done = done
        images = [s for s in sources if isinstance(s, Source)]
        images = [s for s in images if s.name not in done or not self._is_done(s, s.stamp())]
        self.images = images[rank::size]
        self.videos = [s for s in sources if isinstance(s, Video)]
        self.input_size = input_size
        self.keep_rgb = keep_rgb
        self.rank = rank
        self.size = size

    def total(self) -> int | None:
        """Return the number of images and frames to read; None if a video does not state it, or is divided."""
        frames = [video.stated_frames() or 0 for video in self.videos]
        if not all(frames) or (frames and self.size > 1):
            return None
        stamps = {video.relative: video.stamp() for video in self.videos}
        done = sum(stamps.get(path.rpartition("/")[0]) == stamp for path, stamp in self.done.values())
        return len(self.images) + sum(frames) - done

    def read(self, workers: int) -> Generator[DecodedImage | UnreadableSource, None, None]:
        """Yield the images in order, decoded on `workers` threads; with 0 or 1 in this one, and none ahead.

        Large images are decoded in this thread, after all images before them; memory does not grow with the threads.
        """
        for alone, items in groupby(self._items(), lambda one: workers <= 1 or is_large(header_pixels(one[1]) or 0)):
            if alone:
                yield from (self._decode(*one) for one in items)
                continue
            yield from threaded_map(
                lambda one: self._decode(*one),
                items,
                workers,
                lambda one: one.image.nbytes if isinstance(one, DecodedImage) else 0,
                READ_AHEAD_BYTES,
            )

    def _items(self) -> Iterator[tuple[str, Source | VideoFrame]]:
        for source in self.images:
            yield source.stamp(), source
        whole = len(self.videos) >= self.size
        for number, video in enumerate(self.videos):
            if whole and number % self.size != self.rank:
                continue
            stamp = video.stamp()
            missing = (item for item in video.items() if not self._is_done(item.source, stamp))
            for position, item in enumerate(missing, 1):
                if whole or position % self.size == self.rank:
                    yield stamp, item

    def _is_done(self, source: Source, stamp: str) -> bool:
        return self.done.get(source.name) == (source.relative, stamp)

    def _decode(self, stamp: str, item: Source | VideoFrame) -> DecodedImage | UnreadableSource:
        source = item.source
        try:
            image = prepare_image(item.open(), self.input_size, self.keep_rgb)
            return_memory(image.size[0] * image.size[1])
            return DecodedImage(source, stamp, image)
        except UnreadableImage as error:  # its text names the image
            return UnreadableSource(source, str(error))
        except InputError as error:
            return UnreadableSource(source, f"{source}: {error}")
        except Exception as error:  # one image, for which the memory may not suffice, must not end the run
            return UnreadableSource(source, f"{source}: cannot be decoded: {describe_error(error)}")


def header_pixels(item: Source | VideoFrame | Video) -> int | None:
    """Return the pixels of an image by the header of its file; None for videos, and for what cannot be read."""
    if isinstance(item, Source) and not item.address and not item.problem:
        with suppress(InputError, MemoryError):  # reported when its turn comes
            return pixel_count(item.path)
    return None
