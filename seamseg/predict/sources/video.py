"""The frames of a video, decoded by PyAV where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seamseg.data.images import MAX_PIXELS
from seamseg.predict.sources.base import Item, PhotoFile, Source
from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.urls import is_url, open_url

VIDEO_ENDINGS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".mts", ".m2ts")


def is_video(place: str) -> bool:
    """Whether a path or URL is that of a video, by its ending."""
    return place.lower().endswith(VIDEO_ENDINGS)


def require_decoder(place: str) -> Any:
    """The library that decodes videos.

    Raises
    ------
    InputError
        if it is not installed
    """
    try:
        import av
    except ModuleNotFoundError:
        raise InputError(f"{place}: videos need PyAV, which is not installed; run `pip install av`") from None
    except ImportError as error:
        raise InputError(f"{place}: videos need PyAV, which is installed but cannot be loaded: {error}") from None
    return av


@dataclass(frozen=True)
class Frame:
    """A decoded frame."""

    source: Source
    frame: Any

    def open(self) -> Image.Image:
        """Its pixels, upright."""
        pixels = self.frame.to_ndarray(format="rgb24")
        # phones store how they were held; degrees against the clock
        turns = round(getattr(self.frame, "rotation", 0) / 90) % 4
        return Image.fromarray(np.ascontiguousarray(np.rot90(pixels, turns)))


@dataclass(frozen=True)
class Video(PhotoFile):
    """A video file, on disk or at a URL. Frames are called `<video>/frame_000000` and so on, in order of display."""

    def items(self) -> Iterator[Item]:
        """The frames in order; one that cannot be opened where the video breaks off."""
        av = require_decoder(self.place)
        count = 0
        try:
            with av.open(open_url(self.place) if is_url(self.place) else self.place) as container:
                if not container.streams.video:
                    yield self._source(count, "holds no video")
                    return
                stream = container.streams.video[0]
                stream.thread_type = "AUTO"
                stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
                for frame in container.decode(stream):
                    yield Frame(self._source(count), frame)
                    count += 1
            if not count:
                yield self._source(count, "holds no frame")
        except (av.error.FFmpegError, OSError, UnreadableImage) as error:
            what = "cannot be read as a video" if not count else f"breaks off after {count} frames"
            reason = getattr(error, "strerror", None) or str(error)
            yield self._source(count, f"{what}: {reason}")

    def _source(self, number: int, problem: str = "") -> Source:
        frame, address = f"frame_{number:06}", f"{self.place} (frame {number})"
        return Source(Path(self.place), f"{self.name}/{frame}", f"{self.relative}/{frame}", address, problem)
