"""The formats that `predict` writes: overlay pictures, COCO panoptic files, raw outputs of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from seamseg.data.metadata import Metadata
from seamseg.engine.distributed import World, gather_objects
from seamseg.engine.sources import Source
from seamseg.errors import InputError, SeamsegError
from seamseg.evaluation.coco_writer import CocoPanopticWriter
from seamseg.files import write_atomically
from seamseg.structures import PanopticResult, Prediction
from seamseg.visualize.overlay import draw_overlay

JPEG_QUALITY = 92
COCO_JSON = "panoptic.json"


class Writer(Protocol):
    """One format. Its methods may be called from several threads at a time."""

    needs_photo: bool
    """Whether :meth:`write` looks at the pixels of the photo"""

    def path(self, source: Source) -> Path:
        """The file that a photo gets."""

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write that file, whole or not at all."""

    def finish(self, world: World) -> None:
        """Called once after the last photo, by all processes together."""


class OverlayWriter:
    """The photo blended half and half with the colours of its segments, and their contours: `<name>.jpg`."""

    needs_photo = True

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self.metadata = metadata

    def path(self, source: Source) -> Path:
        """`OUT/<name>.jpg`"""
        return self.out / f"{source.name}.jpg"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Draw and write it."""
        assert rgb is not None
        picture = draw_overlay(rgb, result, self.metadata.palette, self.metadata.categories)
        buffer = BytesIO()
        Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY)
        path = self.path(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())

    def finish(self, world: World) -> None:
        """Nothing is left to do."""


class CocoWriter:
    """The COCO panoptic format: `panoptic/<name>.png` and one `panoptic.json` for all, written by the main process."""

    needs_photo = False

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self._files = CocoPanopticWriter(out / COCO_JSON, metadata)

    def path(self, source: Source) -> Path:
        """`OUT/panoptic/<name>.png`"""
        return self._files.folder / f"{source.name}.png"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write the PNG and remember the segments."""
        self.path(source).parent.mkdir(parents=True, exist_ok=True)
        self._files.add(source.name, result, source.relative)

    def finish(self, world: World) -> None:
        """Bring the segments of all processes together and write the JSON."""
        parts = gather_objects(world, (self._files.images, self._files.annotations))
        if not world.is_main:
            return
        for part in parts[1:]:
            self._files.extend(*part)
        self._files.write_json()


class RawWriter:
    """What the network says before the fusion: `<name>.pth.tar`, a dict of tensors in pixels of the network's input.

    sem_pred `H x W` uint8 classes, bbx_pred `K x 4`, cls_pred `K` int64 (0 is the first thing), obj_pred `K` scores,
    msk_pred `K x 28 x 28` logits (SPEC section 1 "Commands").
    """

    needs_photo = False

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out

    def path(self, source: Source) -> Path:
        """`OUT/<name>.pth.tar`"""
        return self.out / f"{source.name}.pth.tar"

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write it."""
        content = {
            "sem_pred": None if prediction.semantic is None else prediction.semantic.to(torch.uint8),
            "bbx_pred": prediction.boxes,
            "cls_pred": prediction.classes,
            "obj_pred": prediction.scores,
            "msk_pred": prediction.mask_logits,
        }
        # slices of a batch would be saved with the whole batch behind them
        content = {name: None if value is None else value.clone() for name, value in content.items()}
        buffer = BytesIO()
        torch.save(content, buffer)
        path = self.path(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())

    def finish(self, world: World) -> None:
        """Nothing is left to do."""


FORMATS: dict[str, Callable[[Path, Metadata], Writer]] = {
    "overlay": OverlayWriter,
    "coco": CocoWriter,
    "raw": RawWriter,
}


def make_writers(formats: Sequence[str], out: Path, metadata: Metadata) -> list[Writer]:
    """The writers of a list of formats; InputError if one is unknown or the list empty."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise InputError(f"--format {','.join(formats)}: choose among {', '.join(FORMATS)}, with commas between")
    return [FORMATS[name](out, metadata) for name in dict.fromkeys(formats)]


class Background:
    """Runs jobs in a few threads, so that the network need not wait for files, but never far ahead of them.

    Parameters
    ----------
    threads : jobs at a time
    waiting : further jobs that may wait; :meth:`submit` blocks beyond, which bounds the memory
    """

    def __init__(self, threads: int = 2, waiting: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="seamseg-writer")
        self._slots = BoundedSemaphore(threads + waiting)
        self._error: BaseException | None = None

    def submit(self, job: Callable[..., Any], *args: Any) -> None:
        """Run `job(*args)` soon; raises the error of an earlier job that failed."""
        self._raise()
        self._slots.acquire()
        self._pool.submit(job, *args).add_done_callback(self._done)

    def finish(self) -> None:
        """Wait for all jobs; raises the error of the first that failed."""
        self._pool.shutdown(wait=True)
        self._raise()

    def abandon(self) -> None:
        """Drop the jobs that have not begun and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _done(self, future: Future) -> None:
        self._slots.release()
        if not future.cancelled() and self._error is None:
            self._error = future.exception()

    def _raise(self) -> None:
        if self._error is None:
            return
        if isinstance(self._error, OSError):
            name = self._error.filename or "output"
            raise SeamsegError(f"{name}: cannot be written: {self._error.strerror or self._error}") from self._error
        raise self._error
