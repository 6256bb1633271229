"""`predict` over many images: decode ahead, run the network, write in the background; resumable."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from seamseg.checkpoints.model_path import is_exported
from seamseg.config.components import at_fault
from seamseg.inference.images import equal_size_batches
from seamseg.inference.predictor import Predictor
from seamseg.maps.predictions import MANIFEST, ArrayPrediction
from seamseg.predicting.find import find_sources
from seamseg.predicting.folder import Done, Line, ManifestWriter, OutputFolder, output_path
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.reader import DecodedImage, ImageReader, UnreadableSource, first_ahead, header_pixels
from seamseg.predicting.settings import PredictSettings
from seamseg.predicting.source import WRITTEN, Source, Video, is_video, write_video
from seamseg.predicting.writers import errors_of
from seamseg.utils.distributed import (
    World,
    broadcast_object,
    distributed,
    gather_objects,
    is_main_process,
    long_timeout_group,
    raised_by_all,
)
from seamseg.utils.errors import InputError, SeamsegError, describe_error, is_of_item, one_line
from seamseg.utils.limits import is_large
from seamseg.utils.output import echo
from seamseg.utils.parallel import BackgroundWriter, share_cores
from seamseg.utils.process_settings import LARGE_PIXELS, return_memory
from seamseg.utils.progress import progress
from seamseg.utils.signals import graceful_termination

_FUSED_BYTES = 8
"""Memory of the map of an image, and of an output that a format draws, for each of its pixels."""

RESUME = "re-run the same command to resume"


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
    if is_video(str(options.out)) and not Path(options.out).is_dir():
        return _predict_video(options, report)
    settings = PredictSettings(options)
    out = output_path(str(options.out))
    sources = find_sources(options.inputs, out, options.limit)
    fresh = not (out / MANIFEST).exists()  # else the first image may be done
    # exported networks take arrays, and choose their devices themselves
    device = None if is_exported(options.model) else options.device
    with first_ahead(sources) if fresh else nullcontext(), distributed(device) as world:
        predictor = settings.load(world.device or options.device)
        folder = settings.open_folder(out, predictor, sources)
        workers = default_workers(sources, world) if options.workers is None else options.workers
        summary = predict_all(predictor, sources, folder, world, options.batch_size, workers, options.restart)
        if world.is_main:
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


def default_workers(sources: Sequence[Source | Video], world: World) -> int:
    """Return how many threads decode, if the user gives no number.

    None for a single image in each process, nor if most are large, judged by some of them.
    """
    if len(sources) < 2 * world.size and all(isinstance(s, Source) for s in sources):
        return 0
    found = [header_pixels(source) for source in sources[:: max(len(sources) // 8, 1)]]
    known = [pixels for pixels in found if pixels is not None]
    large = sum(pixels >= LARGE_PIXELS for pixels in known)
    return 0 if 2 * large > len(known) else share_cores().decoders


def predict_all(
    predictor: Predictor[Any],
    sources: Sequence[Source | Video],
    folder: OutputFolder,
    world: World,
    batch_size: int | None = None,
    workers: int = 0,
    restart: bool = False,
) -> RunSummary:
    """Write the outputs of all images that are not done according to the manifest.

    Memory hardly grows with their number. Images are divided among the processes of `world`, which all call this
    function with the same `sources`. An image that cannot be read, computed or written is reported on stderr and
    skipped; the next run tries it again.

    `batch_size` images of equal network size are computed together, by default as many as suit the network; `workers`
    threads decode, with 0 or 1 this one does, and none ahead; `restart` processes all images again. InputError if an
    output would overwrite an image or belong to two images, or the manifest is of another run; SeamsegError if the disk
    is full, or a device is lost.
    """
    folder.check_names(sources)
    # processes work independently for hours, and some longer than others
    group = long_timeout_group(world)
    with ExitStack() as locked:
        earlier: Done = {}
        with raised_by_all(world, group):
            if world.is_main:
                try:
                    locked.enter_context(folder.lock())
                    earlier = folder.begin(sources, restart)
                except OSError as error:
                    raise SeamsegError(f"{error.filename or 'output'}: {error.strerror or error}") from error
        earlier = broadcast_object(world, earlier, group)
        keep_rgb = any(w.needs_photo for w in folder.writers)
        reader = ImageReader(sources, predictor.input_size, keep_rgb, earlier, world.rank, world.size)
        images: Iterator[DecodedImage | UnreadableSource] = reader.read(workers)
        if world.is_main:
            images = progress(images, reader.total(), "predict")
        loop = _PredictionLoop(predictor, folder, ManifestWriter(folder.manifest))
        with graceful_termination(RESUME), predictor.images_at_a_time() as (threads, begin):
            try:
                loop.run(images, batch_size or predictor.network.batch_size, threads, begin)
            finally:
                loop.lines.close()
        good = sum(loop.lines.names.values())
        redone = sum(name in earlier for name in loop.lines.names)
        line = (good, len(loop.lines.names) - good, loop.found, len(loop.several_frames), redone)
        lines = gather_objects(world, line, group)
        if world.is_main:
            folder.finish()
    done, failed, found, several_frames, redone = map(sum, zip(*lines))
    return RunSummary(done, failed, len(earlier) - redone, done > 0 and not found, several_frames)


_Started: TypeAlias = "tuple[DecodedImage, Callable[[], ArrayPrediction], float]"
"""An image, what waits for its prediction, and the seconds that its start took."""


class _PredictionLoop:
    """Processes the images of one process."""

    def __init__(self, predictor: Predictor[Any], folder: OutputFolder, lines: ManifestWriter) -> None:
        self.predictor = predictor
        self.folder = folder
        self.lines = lines
        self.found = False
        self.several_frames: set[str] = set()

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
                # decoded alone, and kept for its outputs
                large = any(p.image.rgb is not None and is_large(p.image.size[0] * p.image.size[1]) for p in batch)
                if threads > 1 and not large:
                    background.submit(self._run_and_write, batch, size=sum(map(_memory, batch)))
                    continue
                for item, prediction, seconds in self._start_network(batch):
                    if large:
                        # before the next is decoded
                        self._write(item, prediction, seconds)
                    else:
                        # the writer waits for the GPU, which gets the next batch meanwhile
                        background.submit(self._write, item, prediction, seconds, size=_memory(item))
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
        self.lines.add({**_identity(source), "status": "unreadable", "reason": reason})

    def _start_network(self, batch: Sequence[DecodedImage]) -> list[_Started]:
        """Return the images with what waits for their predictions; without those for which the network fails."""
        start = time.perf_counter()
        try:
            predictions = self.predictor.start([item.image.pixels for item in batch])
        except Exception as error:
            if len(batch) == 1 or not is_of_item(error):
                self._fail(batch, "the network fails", error)
                return []
        else:
            seconds = (time.perf_counter() - start) / len(batch)
            return [(item, prediction, seconds) for item, prediction in zip(batch, predictions)]
        # after the handler: the error keeps tensors of the network alive
        return [one for item in batch for one in self._start_network([item])]

    def _run_and_write(self, batch: Sequence[DecodedImage]) -> None:
        for started in self._start_network(batch):
            self._write(*started)

    def _write(self, item: DecodedImage, prediction: Callable[[], ArrayPrediction], seconds: float) -> None:
        start = time.perf_counter()
        try:
            self._write_outputs(item, prediction(), start - seconds)
        except Exception as error:
            self._remove_outputs(item.source)
            self._fail([item], "its outputs cannot be made", error)
        finally:
            item.image.rgb = None  # the loop keeps the image until it has the next
            return_memory(item.image.size[0] * item.image.size[1])

    def _remove_outputs(self, source: Source) -> None:
        for path in (path for writer in self.folder.writers for path in writer.paths(source)):
            with suppress(OSError, InputError, ValueError):  # such as a name with a NUL character
                path.unlink()

    def _fail(self, batch: Sequence[DecodedImage], what: str, error: Exception) -> None:
        """Skip the image of a batch whose error is its own; raise others."""
        names = ", ".join(str(item.source) for item in batch)
        reason = at_fault(error) or (
            str(error) if isinstance(error, (SeamsegError, OSError)) else f"{what} ({describe_error(error)})"
        )
        if not is_of_item(error):
            raise SeamsegError(f"{names}: {reason}") from error
        self._skip(batch[0].source, f"{names}: {reason}")

    def _write_outputs(self, item: DecodedImage, prediction: ArrayPrediction, start: float) -> None:
        source, stamp, image = item
        prediction = self.predictor.in_units(prediction, image.size)
        result = self.predictor.result(prediction, image.size)
        prediction = prediction.on_cpu()  # formats may keep it
        records = []
        for writer in self.folder.writers:
            with errors_of(writer):
                records.append(writer.write(source, image.rgb, prediction, result))
        paths = [path for writer in self.folder.writers for path in writer.paths(source)]
        counts = result.counts()
        line = {
            **_identity(source),
            "status": "ok",
            "stamp": stamp,
            "height": image.size[0],
            "width": image.size[1],
            "outputs": [path.relative_to(self.folder.out).as_posix() for path in paths],
            result.counted: counts,
            "seconds": round(time.perf_counter() - start, 4),
            "records": records,
        }
        self.lines.add(line)
        if counts:
            self.found = True


def _memory(item: DecodedImage) -> int:
    """Return the bytes of an image until its outputs are written."""
    height, width = item.image.size
    return item.image.nbytes + height * width * _FUSED_BYTES


def _identity(source: Source) -> Line:
    return {"name": source.name, "source": str(source), "relative": source.relative}
