"""A class for `map_batches` of Ray Data, or any engine that maps batches of columns: Daft, Spark, pandas.

It does not import Ray: an actor is an ordinary class, whose constructor loads the model, once in each worker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

import seamseg
from seamseg.data.images import as_rgb, open_image
from seamseg.formats.coco_writer import encode_result
from seamseg.inference.result import Panoptic
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.urls import describe_error

COLUMNS = ("bytes", "image")
"""Columns of images, of which the first present is taken: encoded files, or arrays `H x W x 3` uint8."""


class PanopticActor:
    """Panoptic segmentation of batches of images.

    An image that cannot be read or does not fit into the memory fills its `error` column and never stops the batch;
    other errors, which concern all images, are raised.

    Parameters
    ----------
    model : see :func:`seamseg.load`, on a path or URL that every worker can read
    column : name of the column of the images, encoded or as arrays; None for the first of :data:`COLUMNS`
    batch_size : images of equal size that the network processes together; None for 4 on a GPU, 1 elsewhere
    **options : options of :func:`seamseg.load`

    Raises
    ------
    InputError
        if the model is not panoptic, or see :func:`seamseg.load`

    Examples
    --------
    >>> photos = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)  # doctest: +SKIP
    >>> maps = photos.map_batches(  # doctest: +SKIP
    ...     PanopticActor, fn_constructor_kwargs={"model": "city.zip"}, batch_size=16, num_gpus=1,
    ...     compute=ray.data.ActorPoolStrategy(size=4),
    ... )
    >>> maps.drop_columns(["bytes"]).write_parquet("s3://bucket/maps")  # doctest: +SKIP
    """

    def __init__(self, model: Any, column: str | None = None, batch_size: int | None = None, **options: Any) -> None:
        if batch_size is not None and batch_size < 1:
            raise InputError(f"`batch_size={batch_size}`: must be at least 1")
        self.model = seamseg.load(model, **options)
        if self.model.kind != "panoptic":
            raise InputError(f"{model}: a model of kind {self.model.kind}; PanopticActor needs a panoptic one")
        self.column = column
        self.batch_size = batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the columns of the results.

        Parameters
        ----------
        batch : columns by name, as lists or arrays

        Returns
        -------
        all columns of the batch, and arrays `panoptic_png` (bytes, the id image of COCO: R + 256 G + 65536 B),
        `segments_info` (JSON, COCO's entries with the `name` of the class), `height`, `width` (pixels) and `error`
        (text, empty for images that were processed; the others have `b""`, `[]` and 0)

        Raises
        ------
        InputError
            if the batch has no column of images
        """
        photos = [_decode(value) for value in batch[self._column_of(batch)]]
        readable = [photo for photo in photos if not isinstance(photo, str)]
        results = iter(self._predict(readable))
        rows = [_row(photo if isinstance(photo, str) else next(results)) for photo in photos]
        columns = ("panoptic_png", "segments_info", "height", "width", "error")
        made = {name: [row[k] for row in rows] for k, name in enumerate(columns)}
        return {**batch, **{name: np.array(made[name], _TYPES.get(name, object)) for name in columns}}

    def _column_of(self, batch: Mapping[str, Any]) -> str:
        wanted = COLUMNS if self.column is None else (self.column,)
        found = next((name for name in wanted if name in batch), None)
        if found is None:
            raise InputError(
                f"`column`: the batch has the columns {', '.join(map(repr, batch))}, none of them is "
                f"{' or '.join(map(repr, wanted))}"
            )
        return found

    def _predict(self, photos: Sequence[Image.Image]) -> list[Panoptic | str]:
        """Return the results, for an image that fails the reason."""
        try:
            return list(self.model.predict_iter(photos, keep_photo=False, batch_size=self.batch_size))
        except Exception as error:
            if not (isinstance(error, SeamsegError) or lacks_memory(error)):
                raise
            if len(photos) == 1:
                return [str(error) or "out of memory"]
        return [result for photo in photos for result in self._predict([photo])]


_TYPES = {"height": np.int64, "width": np.int64}


def _decode(value: Any) -> Image.Image | str:
    """Decode an image; the reason if that fails."""
    try:
        if value is None:
            return "no image"
        if isinstance(value, (bytes, bytearray, memoryview)):
            return open_image("image", bytes(value))
        return as_rgb(value if isinstance(value, Image.Image) else Image.fromarray(np.asarray(value)))
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a decoder raises, it is about this image
        return f"cannot be decoded: {describe_error(error)}"


def _row(result: Panoptic | str) -> tuple[bytes, str, int, int, str]:
    if isinstance(result, str):
        return b"", "[]", 0, 0, result
    annotation, png = encode_result(result, result.metadata)
    names = [s.name for s in result.segments if not s.iscrowd]
    entries = [{**entry, "name": name} for entry, name in zip(annotation["segments_info"], names, strict=True)]
    return png, json.dumps(entries), *result.size, ""
