"""`predict` over many photos: decode ahead, run the network, write behind, go on past unreadable files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seamseg.engine.distributed import World, gather_objects
from seamseg.engine.photos import Photo, PhotoDataset, Unreadable, equal_size_batches, photo_loader
from seamseg.engine.predictor import Predictor
from seamseg.engine.progress import progress
from seamseg.engine.sources import Source, refuse_overwriting, refuse_sharing
from seamseg.engine.writers import Background, Writer
from seamseg.errors import InputError, SeamsegError
from seamseg.structures import Prediction


@dataclass(frozen=True)
class Tally:
    """Photos that were done and that could not be read, over all processes."""

    done: int
    unreadable: int


def predict_all(
    predictor: Predictor,
    sources: Sequence[Source],
    writers: Sequence[Writer],
    world: World,
    batch_size: int = 1,
    workers: int = 0,
) -> Tally:
    """Write the outputs of all photos.

    Memory does not grow with their number. Photos are shared out over the processes, which must all call this.
    A photo that cannot be read is named on stderr and left out.

    Parameters
    ----------
    predictor : on the device of this process
    sources : all photos, the same list in every process
    writers : formats
    world : the processes
    batch_size : photos of one network size that the network sees together
    workers : processes that decode; 0 decodes in this one

    Raises
    ------
    InputError
        if an output would overwrite a photo, or be that of two photos
    SeamsegError
        if an output cannot be written
    """
    if batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, not {batch_size}")
    for writer in writers:
        outputs = [writer.paths(source) for source in sources]
        refuse_overwriting(sources, [path for paths in outputs for path in paths])
        refuse_sharing(sources, outputs)
    mine = world.shard(list(sources))
    keep_rgb = any(writer.needs_photo for writer in writers)
    photos = _Readable(PhotoDataset([s.path for s in mine], predictor.transform, keep_rgb, predictor.tiling))
    background = Background()
    try:
        for group in equal_size_batches(photos.read(workers, world.is_main), batch_size, lambda photo: photo.image):
            for photo, prediction in zip(group, predictor.raw([photo.image for photo in group])):
                background.submit(_write, predictor, mine[photo.index], photo, prediction, writers)
    except BaseException:
        background.abandon()
        raise
    background.finish()
    tallies = gather_objects(world, (len(mine) - photos.unreadable, photos.unreadable))
    for writer in writers:
        try:
            writer.finish(world)
        except OSError as error:
            name = error.filename or "output"
            raise SeamsegError(f"{name}: cannot be written: {error.strerror or error}") from error
    return Tally(sum(done for done, _ in tallies), sum(unreadable for _, unreadable in tallies))


class _Readable:
    """Photos that can be read; the others are named on stderr and counted."""

    def __init__(self, dataset: PhotoDataset) -> None:
        self.dataset = dataset
        self.unreadable = 0

    def read(self, workers: int, show: bool) -> Iterator[Photo]:
        if not self.dataset:
            return
        loader = photo_loader(self.dataset, workers)
        for photo in progress(loader, len(self.dataset), "predict") if show else loader:
            if isinstance(photo, Unreadable):
                self.unreadable += 1
                print(f"skipped {photo.reason}", file=sys.stderr, flush=True)
            else:
                yield photo


def _write(
    predictor: Predictor, source: Source, photo: Photo, prediction: Prediction, writers: Sequence[Writer]
) -> None:
    result = predictor.fuse(prediction, photo.native_size)
    rgb: np.ndarray | None = None if photo.rgb is None else photo.rgb.numpy()
    for writer in writers:
        writer.write(source, rgb, prediction, result)
