"""Sources of `predict`: images, which are files or frames of a video, which PyAV decodes and writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.maps.images import open_image
from seamseg.utils.errors import InputError, UnreadableImage, require_module
from seamseg.utils.files import replacing
from seamseg.utils.limits import IMAGE_MEMORY, image_budget
from seamseg.utils.progress import progress

VIDEO_ENDINGS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".mts", ".m2ts")

WRITTEN = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""Endings of videos that are written, with their containers in FFmpeg."""

FRAME_BYTES = 40
"""Memory of a pixel of a frame: up to 17 frames that a decoder keeps, and three copies as RGB."""

_LEAST_PYAV = 17
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,avi,matroska,webm,mpeg,mpegts,mpegvideo,asf,flv"
_ALLOWED = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
"""Formats of these endings in FFmpeg: others, such as lists of files, open further files or addresses."""


@dataclass(frozen=True)
class Source:
    """An image: the path of its file, and the name of its outputs, with `/` between folders and without an ending.

    `relative` is the path relative to the input folder. `address` names a frame of a video, and `problem` is why it
    cannot be read: the place where the video breaks off. A thread decodes `ahead` for the first call of :meth:`open`;
    `stamped` is the stamp before that.
    """

    path: Path
    name: str
    relative: str
    address: str = ""
    problem: str = ""
    ahead: list[Future[Image.Image]] | None = None
    stamped: str = ""

    def __str__(self) -> str:
        return self.address or str(self.path)

    @property
    def source(self) -> Source:
        """The image itself, as of a frame of a video."""
        return self

    def open(self) -> Image.Image:
        """Decode the image, see :func:`open_image`; UnreadableImage if that fails."""
        if self.problem:
            raise UnreadableImage(f"{self}: {self.problem}")
        return self.ahead.pop().result() if self.ahead else open_image(self.path)

    def stamp(self) -> str:
        """Return a text that changes when the file changes; empty for images that are not files of their own."""
        return "" if self.address else self.stamped or file_stamp(self.path)


def file_stamp(path: Path) -> str:
    """Return size and modification time of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: no file can have the name
        return ""
    return f"{status.st_size}-{status.st_mtime_ns}"


def is_video(address: str) -> bool:
    """Return whether a path is of a video, by its ending."""
    return address.lower().endswith(VIDEO_ENDINGS)


def require_decoder(address: str) -> Any:
    """Return the library that decodes videos; InputError if it is not installed, or too old."""
    av = require_module("av", address)
    if int(av.__version__.partition(".")[0]) < _LEAST_PYAV:
        raise InputError(
            f"{address}: videos need PyAV {_LEAST_PYAV} or later, this is {av.__version__}, which decodes the colours "
            "of BT.709 as those of BT.601: pip install -U 'seamseg[video]'"
        )
    return av


def write_video(path: Path, frames: Sequence[Path], like: str) -> None:
    """Write image files, each with its number at the end of its name, as a video with the rate of the video `like`."""
    av = require_decoder(like)
    with av.open(like, container_options=_ALLOWED, metadata_errors="replace") as container:
        rate = container.streams.video[0].average_rate or Fraction(25)
    with replacing(path) as temporary, av.open(str(temporary), "w", WRITTEN[path.suffix.lower()]) as container:
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream = container.add_stream(codec, rate, options={"crf": "18"} if codec == "libx264" else {})
        # players assume these colours for large videos, and the others for small ones
        stream.codec_context.colorspace = stream.codec_context.color_primaries = stream.codec_context.color_trc = 1
        for file in progress(frames, desc=path.name):
            pixels = np.asarray(open_image(file).convert("RGB"))
            # H.264 needs even sides
            frame = av.VideoFrame.from_ndarray(pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2])
            if file == frames[0]:
                stream.height, stream.width = frame.height, frame.width
            # a video may change its size
            frame = frame.reformat(stream.width, stream.height, "yuv420p", dst_colorspace="ITU709")
            frame.pts, frame.time_base = int(file.stem.rpartition("_")[2]), 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@dataclass(frozen=True)
class VideoFrame:
    """A decoded frame."""

    source: Source
    frame: Any

    def open(self) -> Image.Image:
        """Return the frame, upright."""
        pixels, matrix = self.frame.to_ndarray(format="rgb24"), self.frame.side_data.get("DISPLAYMATRIX")
        if matrix is not None:
            # of (x, y) as stored to (a x + c y, b x + d y); `frame.rotation` takes mirrored frames for rotated ones
            a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
            if abs(b) + abs(c) > abs(a) + abs(d):
                pixels, a, d = pixels.swapaxes(0, 1), c, b
            pixels = pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
        return Image.fromarray(np.ascontiguousarray(pixels))


@dataclass(frozen=True)
class Video:
    """A video. Its frames are named `<video>/frame_000000` and so on, in display order.

    `address` is its path, `name` the first part of the names of its frames, `relative` the path relative to the input
    folder, and `limit` the most frames, None for all.
    """

    address: str
    name: str
    relative: str
    limit: int | None = None

    def stamp(self) -> str:
        """See :meth:`Source.stamp`."""
        return file_stamp(Path(self.address))

    def stated_frames(self) -> int | None:
        """Return the number of frames that the container states, at most `limit`; None if it states none."""
        av = require_decoder(self.address)
        with (
            suppress(Exception),  # of damaged files, which is reported when its turn comes
            av.open(self.address, container_options=_ALLOWED, metadata_errors="replace") as container,
        ):
            frames = int(container.streams.video[0].frames)
            return min(frames, self.limit or frames) or None
        return None

    def items(self) -> Iterator[Source | VideoFrame]:
        """Iterate over the frames, always in the same order; open each before the next is requested.

        Where a packet is damaged or the video breaks off, there is an image that cannot be opened.
        """
        return islice(self._frames(), self.limit)

    def _frames(self) -> Iterator[Source | VideoFrame]:
        av = require_decoder(self.address)
        count = 0
        try:
            # metadata are not used; PyAV crashes in MPEG files if each stream is given the options, too
            with av.open(self.address, container_options=_ALLOWED, metadata_errors="replace") as container:
                if not container.streams.video:
                    yield self._source(count, "contains no video")
                    return
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    yield self._source(count, "cannot be read as a video: the description of its frames is missing")
                    return
                # threads of frames lag behind the packets: an error in the last ones would drop all that are delayed
                stream.thread_type = "SLICE"
                width, height, most = (
                    stream.codec_context.width,
                    stream.codec_context.height,
                    image_budget() // FRAME_BYTES,
                )
                if width * height > most:
                    limit = (
                        f"the limit of {most / 1e6:.3g} megapixels for a video; the environment variable {IMAGE_MEMORY}"
                    )
                    yield self._source(count, f"{width} x {height} pixels are above {limit} sets it")
                    return
                stream.codec_context.options = {"max_pixels": str(int(most))}
                # an edit list of MP4 leaves out frames that are counted; AVI counts those without data, too
                stated, next_end = stream.frames if container.format.name == "avi" else stream.duration, 0
                for packet in container.demux(stream):
                    start = packet.dts if packet.pts is None else packet.pts
                    next_end = max(next_end, (start or 0) + 2 * (packet.duration or 0))
                    try:
                        frames = packet.decode()
                    except av.error.InvalidDataError as error:
                        yield self._source(count, f"cannot be decoded: {error.strerror}")
                        count += 1
                        continue
                    for frame in frames:
                        yield VideoFrame(self._source(count), frame)
                        count += 1
                if not count:
                    yield self._source(count, "contains no frame")
                elif stream.frames and next_end <= (stated or 0):
                    yield self._source(count, f"breaks off after {count} of {stream.frames} frames")
        except Exception as error:  # of damaged files: nearly anything
            what = "cannot be read as a video" if not count else f"breaks off after {count} frames"
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield self._source(count, f"{what}: {reason}")

    def _source(self, number: int, problem: str = "") -> Source:
        frame, address = f"frame_{number:06}", f"{self.address} (frame {number})"
        return Source(Path(self.address), f"{self.name}/{frame}", f"{self.relative}/{frame}", address, problem)
