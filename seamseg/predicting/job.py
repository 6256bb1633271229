"""`predict` over many images: decode ahead, run the network, write in the background; resumable."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from seamseg.checkpoints.model_path import library_of
from seamseg.config.components import at_fault
from seamseg.data.input_size import InputSize
from seamseg.inference.images import PreparedImage, equal_size_batches, prepare_image
from seamseg.inference.options import PredictOptions
from seamseg.inference.predictor import Predictor
from seamseg.maps.images import PHOTO_ENDINGS, pixel_count
from seamseg.maps.predictions import MANIFEST, ArrayPrediction
from seamseg.predicting.folder import LOCK_NAME, Done, OutputFolder, PredictSettings
from seamseg.predicting.source import WRITTEN, Source, Video, file_stamp, find_sources, is_video, write_video
from seamseg.utils.distributed import (
    World,
    distributed,
    gather_objects,
    is_main_process,
    long_timeout_group,
    process_count,
    raised_by_all,
)
from seamseg.utils.errors import InputError, SeamsegError, UnreadableImage, describe_error, is_of_item, one_line
from seamseg.utils.files import lock_file, refuse_url
from seamseg.utils.limits import ALONE_PIXELS
from seamseg.utils.output import console, echo
from seamseg.utils.parallel import BackgroundWriter, share_cores, threaded_map
from seamseg.utils.process import LARGE_PIXELS, graceful_termination, return_memory
from seamseg.utils.progress import bar

_FUSED_BYTES = 8
"""Memory of the map of an image, and of an output that a format draws, for each of its pixels."""

READ_AHEAD_BYTES = 512 << 20
"""Limit of decoded images that wait; each thread may hold one image more."""

RESUME = "re-run the same command to resume"


class DecodedImage(NamedTuple):
    """An image, the stamp of its file, and what is prepared of it."""

    source: Source
    stamp: str
    image: PreparedImage


class UnreadableSource(NamedTuple):
    """An image that cannot be decoded, and why."""

    source: Source
    reason: str


@dataclass(frozen=True)
class RunSummary:
    """Numbers of images over all processes.

    Attributes
    ----------
    done : number of images done in this run
    failed : in this run; each is reported and skipped
    earlier : done by earlier runs, and not again
    empty : whether images were done in this run, and nothing was found in any of them
    several_frames : files of this run with several frames or pages, of which the first was used
    """

    done: int
    failed: int
    earlier: int = 0
    empty: bool = False
    several_frames: int = 0


def predict_files(
    options: PredictOptions, report: Callable[[Predictor[Any], RunSummary], None] = lambda *_: None
) -> RunSummary:
    """Write the outputs of images; joins the processes of torchrun if there are any.

    The main process calls `report` at the end. InputError if the model, an input or an option is wrong, or the folder
    holds something else; SeamsegError if an output cannot be written.
    """
    given, out = str(options.out), Path(options.out)
    if not given.strip():
        raise InputError("OUT is empty, is a variable not set? `.` is the working folder")
    if not out.is_dir():
        if is_video(given):
            return _predict_video(options, report)
        refuse_url(given)
        if out.exists() or given.lower().endswith(PHOTO_ENDINGS):
            raise InputError(f"{given}: the output must be a folder, this is a file or image; OUT is the last argument")
    settings = PredictSettings(options)
    sources = find_sources(options.inputs, out, options.limit)
    first = sources[0]
    pixels = pixel_count(first.path) if isinstance(first, Source) else 0
    # otherwise it may be done, or belong to another process
    is_first = process_count() == 1 and not (out / MANIFEST).exists()
    # exported networks take arrays, and choose their devices themselves
    device = None if library_of(options.model) == "exported" else options.device
    with ThreadPoolExecutor(1) as pool, distributed(device) as world:
        if is_first and isinstance(first, Source) and pixels <= ALONE_PIXELS:
            # decoded while the model is opened
            sources[0] = replace(first, ahead=[pool.submit(first.open).result])
        predictor = settings.load(world.device or options.device)
        folder = settings.open_folder(out, predictor, sources)
        workers = options.workers
        if workers is None:
            few = len(sources) < 2 * world.size and all(isinstance(s, Source) for s in sources)
            workers = 0 if few or pixels >= LARGE_PIXELS else share_cores().decoders
        summary = predict_all(predictor, sources, folder, world, options.batch_size, workers, options.restart)
        if world.rank == 0:
            report(predictor, summary)
    return summary


def _predict_video(options: PredictOptions, report: Callable[[Predictor[Any], RunSummary], None]) -> RunSummary:
    """Write the overlays of a video, or what `hide` leaves of it, as a video; before its end they are in a folder."""
    out = Path(options.out)
    if out.suffix.lower() not in WRITTEN:
        raise InputError(f"{out}: videos are written as {', '.join(WRITTEN)}; for images OUT is a folder")
    if os.path.lexists(out):
        # it may be a video of the user, forgotten OUT: `restart` does not overwrite it either
        raise InputError(f"{out}: exists already; choose another file for the overlays, or remove it")
    if options.formats is not None:
        raise InputError(
            f"`formats={options.formats}`: a video has overlays, or what `hide` leaves; choose a folder as OUT"
        )
    folder = out.with_name(f"{out.name}.frames")
    sources = find_sources(options.inputs, folder, options.limit)
    if len(sources) != 1 or not isinstance(sources[0], Video):
        raise InputError(f"{out}: OUT is a video, so IN must be one video; for images OUT is a folder")
    if folder.is_dir() and any(folder.iterdir()) and not list(folder.glob("predictions.*")):
        raise InputError(f"{folder}: is for the frames of {out.name}, but holds other files; choose another OUT")
    summary = predict_files(replace(options, out=folder), report)
    if is_main_process():
        if not (frames := sorted((folder / sources[0].name).glob("frame_*.jpg"))):
            raise SeamsegError(f"{out}: not written, as no frame was predicted")
        write_video(out, frames[: options.limit], sources[0].address)
        shutil.rmtree(folder)
    return summary


def predict_all(
    predictor: Predictor[Any],
    sources: Sequence[Source | Video],
    folder: OutputFolder,
    world: World,
    batch_size: int | None = None,
    workers: int = 0,
    restart: bool = False,
) -> RunSummary:
    """Write the outputs of all images that are not done by the manifest; memory hardly grows with their number.

    All processes of `world` call it with the same `sources`, and each does its part. An image that fails is reported on
    stderr and skipped; the next run tries it again. InputError if an output would overwrite an image or belong to two
    images, or the manifest is of another run; SeamsegError if the disk is full, or a device is lost.
    """
    folder.check_names(sources)
    # processes work independently for hours, and some longer than others
    group = long_timeout_group() if world.size > 1 else None
    with ExitStack() as locked:
        earlier: Done = {}
        with raised_by_all(world, group):
            if world.rank == 0:
                try:
                    other = (
                        "another `seamseg predict` is writing to this folder: wait until it ends, or choose another "
                        "folder (for more processes in one run use torchrun)"
                    )
                    locked.enter_context(lock_file(folder.out / LOCK_NAME, other))
                    earlier = folder.begin(sources, restart)
                except OSError as error:
                    raise SeamsegError(f"{error.filename or 'output'}: {error.strerror or error}") from error
        earlier = gather_objects(world, earlier, group)[0]
        keep_rgb = any(w.needs_photo for w in folder.writers)
        reader = ImageReader(sources, predictor.input_size, keep_rgb, earlier, world.rank, world.size)
        images = reader.read(workers)
        loop = _PredictionLoop(predictor, folder)
        shown = nullcontext() if console.quiet or world.rank else bar(None, reader.total, "predict")
        with shown as folder.bar, graceful_termination(RESUME), predictor.images_at_a_time() as (threads, begin):
            loop.run(images, batch_size or predictor.batch_size, threads, begin)
        names = folder.names
        good, redone = sum(names.values()), sum(name in earlier for name in names)
        line = (good, len(names) - good, loop.found, len(loop.several_frames), redone)
        lines = gather_objects(world, line, group)
        if world.rank == 0:
            folder.finish()
    done, failed, found, several_frames, redone = map(sum, zip(*lines))
    return RunSummary(done, failed, len(earlier) - redone, done > 0 and not found, several_frames)


@dataclass
class _PredictionLoop:
    """Processes the images of one process."""

    predictor: Predictor[Any]
    folder: OutputFolder
    found: bool = False
    several_frames: set[str] = field(default_factory=set)

    def run(
        self,
        images: Iterator[DecodedImage | UnreadableSource],
        batch_size: int,
        threads: int = 1,
        begin: Callable[[], object] | None = None,
    ) -> None:
        """Process all images; `threads` and `begin` as of :meth:`Predictor.images_at_a_time`."""
        background = BackgroundWriter(threads if threads > 1 else None, begin=begin)
        try:
            for batch in equal_size_batches(
                self._readable(images),
                batch_size,
                lambda p: p.image.pixels.shape,
                lambda p: p.image.nbytes,
                tiling=self.predictor.tiling,
            ):
                size = sum(p.image.nbytes + _FUSED_BYTES * p.image.size[0] * p.image.size[1] for p in batch)
                # a large image is decoded alone, and kept for its outputs
                if any(p.image.rgb is not None and p.image.size[0] * p.image.size[1] > ALONE_PIXELS for p in batch):
                    self._compute(batch, self._write)  # before the next is decoded
                elif threads > 1:
                    background.submit(self._compute, batch, self._write, size=size)
                else:
                    # the writer waits for the GPU, which gets the next batch meanwhile
                    self._compute(batch, partial(background.submit, self._write, size=size // len(batch)))
        except BaseException:
            background.abandon()
            raise
        background.finish()

    def _readable(self, images: Iterator[DecodedImage | UnreadableSource]) -> Iterator[DecodedImage]:
        for one in images:
            if isinstance(one, UnreadableSource):
                self._skip(*one)
                continue
            if one.image.several_frames:
                self.several_frames.add(one.source.name)
            yield one

    def _skip(self, source: Source, reason: str) -> None:
        self._remove_outputs(source)  # of an earlier run, whose image was another
        reason = one_line(reason)
        echo(f"skipped {reason}", file=sys.stderr, flush=True)
        line = {"name": source.name, "source": source.address, "relative": source.relative}
        self.folder.add({**line, "status": "unreadable", "reason": reason})

    def _compute(self, batch: Sequence[DecodedImage], write: Callable[..., object]) -> None:
        """Start the network, and call `write` with each image, what waits for its prediction, and seconds."""
        start = time.perf_counter()
        try:
            predictions = self.predictor.start([item.image.pixels for item in batch])
        except Exception as error:
            if len(batch) == 1 or not is_of_item(error):
                self._fail(batch, "the network fails", error)
                return
        else:
            seconds = (time.perf_counter() - start) / len(batch)
            for item, prediction in zip(batch, predictions):
                write(item, prediction, seconds)
            return
        # after the handler: the error keeps tensors of the network alive
        for item in batch:
            self._compute([item], write)

    def _write(self, item: DecodedImage, prediction: Callable[[], ArrayPrediction], seconds: float) -> None:
        start = time.perf_counter() - seconds
        source, stamp, image = item
        try:
            found = self.predictor.in_units(prediction(), image.size)
            result = self.predictor.result(found, image.size)
            found = found.on_cpu()  # formats may keep it
            records, paths = [], list[Path]()
            for writer in self.folder.writers:
                records.append(writer.write(source, image.rgb, found, result))
                paths += writer.paths(source)
            counts = result.counts()
            self.folder.add(
                {
                    "name": source.name,
                    "source": source.address,
                    "relative": source.relative,
                    "status": "ok",
                    "stamp": stamp,
                    "height": image.size[0],
                    "width": image.size[1],
                    "outputs": [path.relative_to(self.folder.out).as_posix() for path in paths],
                    result.counted: counts,
                    "seconds": round(time.perf_counter() - start, 4),
                    "records": records,
                }
            )
            self.found = self.found or bool(counts)
        except Exception as error:
            self._remove_outputs(source)
            self._fail([item], "its outputs cannot be made", error)
        finally:
            image.rgb = None  # the loop keeps the image until it has the next
            return_memory(image.size[0] * image.size[1])

    def _remove_outputs(self, source: Source) -> None:
        for path in (path for writer in self.folder.writers for path in writer.paths(source)):
            with suppress(OSError, InputError, ValueError):  # such as a name with a NUL character
                path.unlink()

    def _fail(self, batch: Sequence[DecodedImage], what: str, error: Exception) -> None:
        """Skip the image of a batch whose error is its own; raise others."""
        names = ", ".join(item.source.address for item in batch)
        reason = at_fault(error) or (
            str(error) if isinstance(error, (SeamsegError, OSError)) else f"{what} ({describe_error(error)})"
        )
        if not is_of_item(error):
            raise SeamsegError(f"{names}: {reason}") from error
        self._skip(batch[0].source, f"{names}: {reason}")


class ImageReader:
    """Decodes the images of one process, with more than one worker in threads: Pillow and PyAV release the GIL.

    Single images are assigned to the processes in turn. If there are enough videos for all processes, each reads whole
    ones; otherwise each goes through every video and converts its part of the frames. `total` is the number of images
    and frames to read; None if a video does not state it, or is divided.
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
        images = [s for s in images if s.name not in done or done[s.name] != (s.relative, file_stamp(s.path))]
        self.images = images[rank::size]
        self.videos = [s for s in sources if isinstance(s, Video)]
        self.input_size = input_size
        self.keep_rgb = keep_rgb
        self.rank = rank
        self.size = size
        frames = [video.stated_frames() or 0 if size == 1 else 0 for video in self.videos]
        self.total: int | None = None
        if all(frames):
            stamps = {video.relative: file_stamp(video.address) for video in self.videos}
            earlier = sum(stamps.get(path.rpartition("/")[0]) == stamp for path, stamp in done.values())
            self.total = len(self.images) + sum(frames) - earlier

    def read(self, workers: int) -> Generator[DecodedImage | UnreadableSource, None, None]:
        """Yield the images in order, decoded on `workers` threads; in this one with 0 or 1, and large ones."""
        images = ((file_stamp(source.path), source) for source in self.images)
        for alone, items in groupby(
            chain(images, *(self._frames(*numbered) for numbered in enumerate(self.videos))),
            # what is decoded ahead is not large, nor is a frame of a video
            lambda one: workers <= 1 or (not one[1].ahead and pixel_count(one[1].path) > ALONE_PIXELS),
        ):
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

    def _frames(self, number: int, video: Video) -> Iterator[tuple[str, Source]]:
        whole = len(self.videos) >= self.size
        if whole and number % self.size != self.rank:
            return
        stamp = file_stamp(video.address)
        missing = (item for item in video.items() if self.done.get(item.name) != (item.relative, stamp))
        for position, item in enumerate(missing, 1):
            if whole or position % self.size == self.rank:
                yield stamp, item

    def _decode(self, stamp: str, source: Source) -> DecodedImage | UnreadableSource:
        try:
            image = prepare_image(source.open(), self.input_size, self.keep_rgb)
            return_memory(image.size[0] * image.size[1])
            return DecodedImage(source, stamp, image)
        except UnreadableImage as error:  # its text names the image
            return UnreadableSource(source, str(error))
        except InputError as error:
            return UnreadableSource(source, f"{source.address}: {error}")
        except Exception as error:  # one image, for which the memory may not suffice, must not end the run
            return UnreadableSource(source, f"{source.address}: cannot be decoded: {describe_error(error)}")
