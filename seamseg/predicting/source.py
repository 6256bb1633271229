"""Sources of `predict` and where they are found: images, and videos, which PyAV decodes and writes."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from seamseg.maps.images import PHOTO_ENDINGS, image_files, open_image
from seamseg.maps.predictions import MANIFEST
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError, UnreadableImage, counted, require_module
from seamseg.utils.files import listed_names, nearest_path, read_bytes, refuse_url, replacing
from seamseg.utils.limits import IMAGE_MEMORY, image_budget
from seamseg.utils.output import echo
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


Found = tuple[list[str], list[PurePosixPath]]
"""Paths, and their paths relative to the input"""


@dataclass(frozen=True)
class Source:
    """An image: the path of its file, and the name of its outputs, with `/` between folders, see :func:`find_sources`.

    `relative` is the path relative to the input folder. Messages and the manifest name it by its `address`, the path or
    the frame of a video. `problem` is why it cannot be read: the place where the video breaks off. `ahead` is a list of
    one function that returns the pixels; the first :meth:`open` removes it, so that they are not kept.
    """

    path: Path
    name: str
    relative: str
    address: str = ""
    problem: str = ""
    ahead: list[Callable[[], Image.Image]] | None = None

    def open(self) -> Image.Image:
        """Decode the image, see :func:`open_image`; UnreadableImage if that fails."""
        if self.problem:
            raise UnreadableImage(f"{self.address}: {self.problem}")
        return self.ahead.pop()() if self.ahead else open_image(self.path)


def file_stamp(path: str | Path) -> str:
    """Return size and modification time of a file, which change with it; empty if it does not exist."""
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


def upright(frame: Any) -> Image.Image:
    """Return the pixels of a frame that PyAV has decoded."""
    pixels, matrix = frame.to_ndarray(format="rgb24"), frame.side_data.get("DISPLAYMATRIX")
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

    def items(self) -> Iterator[Source]:
        """Iterate over the frames, always in the same order; open each before the next is requested.

        Where a packet is damaged or the video breaks off, there is an image that cannot be opened.
        """
        return islice(self._frames(), self.limit)

    def _frames(self) -> Iterator[Source]:
        av = require_decoder(self.address)
        count = 0
        try:
            # metadata are not used; PyAV crashes in MPEG files if each stream is given the options, too
            with av.open(self.address, container_options=_ALLOWED, metadata_errors="replace") as container:
                if not container.streams.video:
                    yield self.frame(count, "contains no video")
                    return
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    yield self.frame(count, "cannot be read as a video: the description of its frames is missing")
                    return
                # threads of frames lag behind the packets: an error in the last ones would drop all that are delayed
                stream.thread_type = "SLICE"
                width, height = stream.codec_context.width, stream.codec_context.height
                most = image_budget() // FRAME_BYTES
                if width * height > most:
                    limit = f"the limit of {most / 1e6:.3g} megapixels for a video; the environment variable"
                    yield self.frame(count, f"{width} x {height} pixels are above {limit} {IMAGE_MEMORY} sets it")
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
                        yield self.frame(count, f"cannot be decoded: {error.strerror}")
                        count += 1
                        continue
                    for frame in frames:
                        yield replace(self.frame(count), ahead=[partial(upright, frame)])
                        count += 1
                if not count:
                    yield self.frame(count, "contains no frame")
                elif stream.frames and next_end <= (stated or 0):
                    yield self.frame(count, f"breaks off after {count} of {stream.frames} frames")
        except Exception as error:  # of damaged files: nearly anything
            what = "cannot be read as a video" if not count else f"breaks off after {count} frames"
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield self.frame(count, f"{what}: {reason}")

    def frame(self, number: int, problem: str = "") -> Source:
        """Return the source of a frame."""
        name, address = f"frame_{number:06}", f"{self.address} (frame {number})"
        return Source(Path(self.address), f"{self.name}/{name}", f"{self.relative}/{name}", address, problem)


def find_sources(
    inputs: str | Path | Sequence[str | Path], out: Path | None = None, limit: int | None = None
) -> list[Source | Video]:
    """Find the images of one or several files, folders (with sub-folders), globs (`**` for any depth), lists, videos.

    The name of an output is the path relative to the folder (of several inputs or a list: to the common parent folder),
    without its ending, but with it where two images would have the same name. A `limit` is of the images, and of the
    frames of each video. Below a folder or `**`, folders that `predict`, `prepare` or `train` has written, and `out`,
    are left out. InputError if an input does not exist or is a URL, there are no images, or the folder is `out`.
    """
    given = [inputs] if isinstance(inputs, (str, Path)) else inputs
    if not given:
        raise InputError("`inputs` is empty: name images, videos, folders or lists")
    found = [_expand(str(one), out) for one in given]
    addresses, relative = found[0] if len(found) == 1 else _in_common([one for some, _ in found for one in some])
    # "." is the root folder, in a list
    names, before = [str(p.with_suffix("")) if p.name else "." for p in relative], list[str]()
    while names != before:
        before, uses = names, Counter(names)
        names = [str(p) if uses[name] > 1 else name for p, name in zip(relative, names)]
    sources: list[Source | Video] = []
    images = 0
    for address, name, path in zip(addresses, names, relative):
        if is_video(address):
            require_decoder(address)
            sources.append(Video(address, name, str(path), limit))
        elif limit is None or images < limit:
            sources.append(Source(Path(address), name, str(path), str(Path(address))))
            images += 1
    return sources


def _expand(text: str, out: Path | None) -> Found:
    path = Path(text)
    if not text.strip():
        raise InputError("IN is empty, is a variable not set? `.` is the working folder")
    if text.startswith("@") and not os.path.exists(text):
        return _of_list(Path(text[1:]))
    if os.path.isdir(text):
        return _of_folder(text, out)
    refuse_url(text)
    if text.lower().endswith((".tar", ".tar.gz", ".tgz")):
        raise InputError(f"{text}: `python -m seamseg.contrib.ray --input webdataset` predicts the images of tars")
    if os.path.exists(text):
        return _of_list(path) if path.suffix.lower() == ".txt" else ([str(path)], [PurePosixPath(path.name)])
    if glob.has_magic(text):
        return _of_glob(text, out)
    raise InputError(f"{text}: no such image, video, folder or list{nearest_path(text)}")


def _relative_to(root: Path, found: Sequence[Path]) -> Found:
    return [str(p) for p in found], [PurePosixPath(p.relative_to(root).as_posix()) for p in found]


def _of_folder(text: str, out: Path | None) -> Found:
    folder = Path(text)
    if out is not None and folder.resolve() == out.resolve():
        raise InputError(f"{out}: images and outputs in one folder would mix; choose another output folder")
    if (folder / "metadata.bin").exists() and (folder / "msk").is_dir():
        raise InputError(f"{text}: a dataset folder, whose masks are images, too; name {folder / 'img'}")
    files = image_files(folder, _left_out(folder, out), (*PHOTO_ENDINGS, *VIDEO_ENDINGS))
    found = [path for path in files if not is_video(path.name)]
    if found and len(found) < len(files) and is_main_process():
        videos = counted(len(files) - len(found), "video")
        echo(f"{text}: {videos} skipped; use a glob for videos, such as '*.mp4'", file=sys.stderr)
    if not found:
        raise InputError(
            f"{text}: 0 images found in this folder; looked for {', '.join(PHOTO_ENDINGS)} (for videos use a "
            "glob, as '*.mp4')"
        )
    return _relative_to(folder, found)


def _of_glob(pattern: str, out: Path | None) -> Found:
    parts = Path(pattern).parent.parts
    # the folders before the first wildcard
    root = Path(*parts[: next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))])
    # a pattern of given depth names the folders
    left_out = _left_out(root, out) if "**" in pattern else lambda folder: False
    matches = map(Path, glob.iglob(pattern, recursive=True))
    found = sorted(
        p for p in matches if p.is_file() and not any(left_out(root / f) for f in p.relative_to(root).parents)
    )
    if not found:
        raise InputError(f"{pattern}: 0 images match this pattern")
    return _relative_to(root, found)


def _of_list(path: Path) -> Found:
    if not os.path.exists(path):
        raise InputError(f"{path}: no such list of images{nearest_path(path)}")
    addresses = []
    for line in dict.fromkeys(listed_names(read_bytes(path, what := "list of images"), path, what)):
        # Windows writes back slashes, which are a part of the name elsewhere
        spellings = [path.parent / line, line, path.parent / line.replace("\\", "/"), line.replace("\\", "/")]
        # unlike methods of `Path`, this is no error for a name that no file can have
        found = next(filter(os.path.exists, map(str, spellings)), None)
        if found is not None or not line.startswith("#"):
            refuse_url(line, f"{path}: ")
            addresses.append(found or str(spellings[2]))
    if not addresses:
        raise InputError(f"{path}: this list names 0 images; it needs one path per line")
    return _in_common(addresses)


def _in_common(addresses: Sequence[str]) -> Found:
    """Remove duplicates, and return the paths relative to the common parent folder."""
    # one file may have several spellings
    once: dict[str, str] = {}
    for address in addresses:
        once.setdefault(os.path.abspath(address), address)
    # absolute, so that names contain neither `..` nor the working folder
    full = [p.lstrip(os.sep) or "." for p in once]
    common = os.path.commonpath([os.path.dirname(p) for p in full])
    return list(once.values()), [PurePosixPath(os.path.relpath(p, common or ".")) for p in full]


def _left_out(root: Path, out: Path | None) -> Callable[[Path], bool]:
    """Return a function that tells, with a line, whether a folder below `root` holds results instead of images."""
    own = None if out is None or out.resolve() in root.resolve().parents else out.resolve()

    @lru_cache(None)
    def left_out(folder: Path) -> bool:
        if folder == root or (own is not None and folder.resolve() == own):
            return folder != root
        # files that `predict`, `prepare` or `train` writes
        made = any(os.path.exists(folder / name) for name in (MANIFEST, "metadata.bin"))
        if made and is_main_process():
            echo(f"{folder}: left out, it holds results of seamseg; name it to use its images", file=sys.stderr)
        return made

    return left_out
