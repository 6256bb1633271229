"""The interface of an output format of `predict`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from seamseg.config import components
from seamseg.inference.results.base import ImageResult
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import ArrayPrediction, InferenceNetwork
from seamseg.predicting.source import Source, Video
from seamseg.utils.errors import named_errors

Record = dict[str, Any]
"""Data that a format stores in the manifest for an image, as JSON."""

Records = Callable[[], Iterator[Record]]
"""Iterates over the records of all images in the order of their names; may be called several times."""


R = TypeVar("R", bound=ImageResult, contravariant=True)


class OutputFormat(ABC, Generic[R]):
    """An output format for results of type `R`; derive from it, and register the class.

    The methods may be called from several threads at a time.

    Parameters
    ----------
    out : folder
    metadata : the classes of the model
    keys : values of the section `[format NAME]`

    Attributes
    ----------
    kinds : kinds of networks whose results it holds
    file : file of an image in the folder, with `{}` for its name; empty if there is none, or :meth:`paths` returns them
    final : file that :meth:`finish` writes; empty if there is none, or :meth:`finals` returns them
    needs_photo : whether :meth:`write` needs the pixels of the image
    all_classes : whether it contains all classes whatever the user chooses, so that a choice is an error
    probabilities : whether it needs the probabilities of a semantic network
    map_only : whether it reads no detections of a panoptic network; if so for all formats, `prediction` may lack those
        that score too low for the panoptic map; not inherited
    least_score, chosen : detections score above, by default all that the network returns, as average precision needs;
        indices of their classes, stuff first, None for all. Set after the construction, for formats that read
        detections from the prediction
    """

    kinds: tuple[str, ...] = ()
    file: str = ""
    final: str = ""
    needs_photo: bool = False
    all_classes: bool = False
    probabilities: bool = False
    map_only: bool = False
    least_score: float = 0.0
    chosen: Sequence[int] | None = None

    def __init__(self, out: Path, metadata: Metadata, keys: Any = None) -> None:
        self.out = out
        self.metadata = metadata
        self.keys = keys

    def problem(self, network: InferenceNetwork, video: Video | None) -> str | None:
        """Return why the results of a network, or of a video, cannot be written; None if they can."""
        return None

    def paths(self, source: Source) -> list[Path]:
        """Return the files of an image, as far as they are known in advance."""
        return [self.out / self.file.format(source.name)] if self.file else []

    @abstractmethod
    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: R) -> Record | None:
        """Write the files of an image, each atomically, and return what :meth:`finish` needs of it, if anything."""

    def finals(self) -> list[Path]:
        """Return the files that :meth:`finish` writes."""
        return [self.out / self.final] if self.final else []

    def finish(self, records: Records) -> None:
        """Write files about all images; called by the main process after the last one.

        Parameters
        ----------
        records : what :meth:`write` returned for each image, in this run or an earlier one, in any process
        """
        return


def errors_of(writer: OutputFormat[Any]) -> AbstractContextManager[None]:
    """Return a context that names a custom format, and the line of its file, in errors of its code."""
    own = components.custom_of(writer)
    return nullcontext() if own is None else named_errors(own.section, own.module)
