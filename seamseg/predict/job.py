"""`predict` over many photos: decode ahead, run the network, write behind, go on past unreadable files and kills."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.inference.images import Photo, PhotoTransform, Unreadable, equal_size_batches
from seamseg.inference.predictor import Predictor
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.manifest import Line
from seamseg.predict.sinks.base import Begun, Desk, Outputs
from seamseg.predict.sources.base import Container, Source
from seamseg.predict.sources.find import refuse_overwriting, refuse_sharing
from seamseg.predict.sources.reader import Decoders, Share, bytes_of_photo, despite_deaths
from seamseg.predict.writers import Writer
from seamseg.structures import Prediction
from seamseg.utils.distributed import World, broadcast_object, gather_objects, long_timeout_group, shared_counter
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.parallel import BackgroundWriter
from seamseg.utils.progress import progress
from seamseg.utils.signals import orderly
from seamseg.utils.urls import describe_error

_FUSED_BYTES = 8
"""Of the maps of a photo and what formats draw, for each of its pixels"""


@dataclass(frozen=True)
class Tally:
    """Photos that were done and that could not be read, over all processes; and those that earlier runs had done."""

    done: int
    unreadable: int
    earlier: int = 0


def predict_all(
    predictor: Predictor,
    sources: Sequence[Source | Container],
    outputs: Outputs,
    world: World,
    batch_size: int = 1,
    workers: int = 0,
    restart: bool = False,
    limit: int | None = None,
) -> Tally:
    """Write the outputs of all photos that the manifest does not say are done.

    Memory hardly grows with their number. Photos are shared out over the processes, which must all call this.
    A photo that cannot be read is named on stderr and left out; the next run tries it again.

    Parameters
    ----------
    predictor : on the device of this process
    sources : all photos, the same list in every process
    outputs : where they go, by which formats, and what says that they are done
    world : the processes
    batch_size : photos of one network size that the network sees together
    workers : processes that decode; 0 decodes in this one
    restart : do all photos anew
    limit : photos of each container at most

    Raises
    ------
    InputError
        if an output would overwrite a photo or be that of two photos, or the manifest is of another run
    SeamsegError
        if an output cannot be written
    """
    if batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, not {batch_size}")
    _check_names(sources, outputs.writers)
    outputs.check(sources)
    # processes work on their own for hours, and not equally long
    patient = long_timeout_group(world)
    with outputs.lock:
        begun = _begin(outputs, sources, restart, world, patient)
        outputs.lock.together()
        keep_rgb = any(w.needs_photo for w in outputs.writers)
        decoder = PhotoTransform(predictor.transform, keep_rgb, predictor.tiling)
        share = Share(sources, decoder, begun.done, world.rank, world.size, limit)
        work = _Work(predictor, outputs.desk(world, begun, shared_counter(world)))
        decoders = Decoders(share, workers)
        with orderly("the same command goes on where it was"):
            try:
                while not work.attempt(decoders, batch_size, world.is_main):
                    pass
            finally:
                work.desk.close()
        good = sum(work.desk.names.values())
        lines = gather_objects(world, (good, len(work.desk.names) - good), patient)
        if world.is_main:
            outputs.end([sum(counts) for counts in lines])
    return Tally(sum(good for good, _ in lines), sum(bad for _, bad in lines), len(begun.done))


def _begin(
    outputs: Outputs, sources: Sequence[Source | Container], restart: bool, world: World, group: object
) -> Begun:
    """What earlier runs have done; all processes raise the error that the main one has met."""
    found: Any = None
    if world.is_main:
        try:
            outputs.lock.alone()
            found = outputs.begin(sources, restart)
            outputs.lock.together()
        except SeamsegError as error:
            found = error
        except OSError as error:
            found = SeamsegError(f"{error.filename or 'output'}: {error.strerror or error}")
    found = broadcast_object(world, found, group)
    if isinstance(found, SeamsegError):
        raise found
    return found


def _check_names(sources: Sequence[Source | Container], writers: Sequence[Writer]) -> None:
    photos = [s for s in sources if isinstance(s, Source)]
    containers = [s for s in sources if not isinstance(s, Source)]
    for writer in writers:
        # never all paths at once: of a million photos they are gigabytes
        refuse_overwriting(photos, (path for source in photos for path in writer.paths(source)))
        refuse_sharing(photos, map(writer.paths, photos))
        if containers and len(sources) > 1:
            # their photos have no names yet, but lie in folders
            a, b = (writer.paths(Source(Path("x"), f"{folder}/x", "x")) for folder in "ab")
            if a == b:
                raise InputError(
                    f"{containers[0].name}: photos of several videos or shards could share {a[0]}, since this format "
                    "has no sub-folders; predict each into an output folder of its own"
                )


class _Work:
    """The photos of one process."""

    def __init__(self, predictor: Predictor, desk: Desk) -> None:
        self.predictor = predictor
        self.desk = desk
        self._seen = ""

    def attempt(self, decoders: Decoders, batch_size: int, show: bool) -> bool:
        """Do all photos without a line so far; False if a decoder died, and the rest must be tried again."""
        background = BackgroundWriter()
        try:
            photos = self._readable(decoders, show)
            batches = equal_size_batches(
                photos, batch_size, lambda read: read[2].image, lambda read: bytes_of_photo(read[2])
            )
            for group in batches:
                begin = time.perf_counter()
                predictions = self._see(group)
                share = (time.perf_counter() - begin) / len(group)
                for (source, stamp, photo), prediction in zip(group, predictions):
                    height, width = photo.native_size
                    size = bytes_of_photo(photo) + height * width * _FUSED_BYTES
                    background.submit(self._write, source, stamp, photo, prediction, share, size=size)
        except BaseException as error:
            despite_deaths(background.abandon)
            death = decoders.bury(error) if isinstance(error, (RuntimeError, OSError, EOFError)) else None
            if death is None and self._seen and isinstance(error, Exception):
                raise _named(error, f"{self._seen}: the network fails") from error
            if death is None:
                raise
            # an output that failed meanwhile ends the run: photos of a lost shard are no longer among the names to do
            background.check()
            print(death.story, file=sys.stderr, flush=True)
            for source, reason in death.left_out:
                self._leave_out(source, reason)
            return False
        background.finish()
        return True

    def _readable(self, decoders: Decoders, show: bool) -> Iterator[tuple[Source, str, Photo]]:
        names = self.desk.names
        total = None if decoders.share.containers else len(decoders.share.mine) - len(names)
        reads = decoders.read(frozenset(names))
        for source, stamp, photo in progress(reads, total, "predict") if show else reads:
            if isinstance(photo, Unreadable):
                self._leave_out(source, photo.reason)
            else:
                yield source, stamp, photo

    def _leave_out(self, source: Source, reason: str) -> None:
        print(f"skipped {reason}", file=sys.stderr, flush=True)
        self.desk.leave_out({**_place(source), "status": "unreadable", "reason": reason})

    def _see(self, group: Sequence[tuple[Source, str, Photo]]) -> list[Prediction]:
        self._seen = ", ".join(str(source) for source, _, _ in group)
        predictions = self.predictor.raw([photo.image for _, _, photo in group])
        self._seen = ""
        return predictions

    def _write(self, source: Source, stamp: str, photo: Photo, prediction: Prediction, seconds: float) -> None:
        try:
            self._write_outputs(source, stamp, photo, prediction, seconds)
        except (SeamsegError, OSError):
            raise  # names the file
        except Exception as error:
            raise _named(error, f"{source}: its outputs cannot be made") from error

    def _write_outputs(self, source: Source, stamp: str, photo: Photo, prediction: Prediction, seconds: float) -> None:
        begin = time.perf_counter()
        result = self.predictor.fuse(prediction, photo.native_size)
        rgb: np.ndarray | None = None if photo.rgb is None else photo.rgb.numpy()
        with self.desk.place() as room:
            records = [writer.write(source, rgb, prediction, result) for writer in room.writers]
            line: Line = {
                **_place(source),
                "status": "ok",
                "stamp": stamp,
                "height": photo.native_size[0],
                "width": photo.native_size[1],
                "outputs": [],
                "segments": self._counts(result),
                "seconds": round(seconds + time.perf_counter() - begin, 4),
                "records": records,
            }
            self.desk.hand_in(source, room, line)

    def _counts(self, result: PanopticResult) -> dict[str, int]:
        """Segments of each class that the photo has."""
        count = Counter(segment.category for segment in result.segments if not segment.iscrowd)
        return {self.predictor.metadata.categories[category]: count[category] for category in sorted(count)}


def _named(error: Exception, what: str) -> SeamsegError:
    """An error that says at which photo it came."""
    return SeamsegError(f"{what}: {error}" if isinstance(error, SeamsegError) else f"{what} ({describe_error(error)})")


def _place(source: Source) -> Line:
    return {"name": source.name, "source": str(source), "relative": source.relative}
