"""Where `predict` puts its outputs: a folder, a URL, or tar shards at either."""

from __future__ import annotations

from pathlib import Path

from seamseg.predict.manifest import Line
from seamseg.predict.sinks.base import Outputs
from seamseg.predict.sinks.files import FileOutputs
from seamseg.predict.sinks.folder import FolderOutputs
from seamseg.predict.sinks.scratch import MakeWriters
from seamseg.predict.sinks.shards import SHARD_PHOTOS, ShardOutputs
from seamseg.predict.sinks.target import Place, parse_place

__all__ = ["SHARD_PHOTOS", "FolderOutputs", "Outputs", "Place", "open_outputs", "parse_place"]


def open_outputs(place: Place, make_writers: MakeWriters, head: Line, shard_photos: int = SHARD_PHOTOS) -> Outputs:
    """The outputs of a place.

    Parameters
    ----------
    place : OUT
    make_writers : the formats, for a folder
    head : of the manifest
    shard_photos : photos of a shard at most

    Raises
    ------
    InputError
        if the place cannot be written to, or does not go with the formats
    """
    if place.shards is not None:
        return ShardOutputs(place, make_writers, head, shard_photos)
    if place.is_url:
        return FileOutputs(place, make_writers, head)
    out = Path(place.folder)
    return FolderOutputs(out, make_writers(out), head)
