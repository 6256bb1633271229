"""Where `predict` puts its outputs: a folder, a URL, or tar shards at either."""

from __future__ import annotations

from pathlib import Path

from seamseg.engine.manifest import Line
from seamseg.engine.outputs.files import FileOutputs
from seamseg.engine.outputs.folder import FolderOutputs
from seamseg.engine.outputs.outputs import Outputs
from seamseg.engine.outputs.place import Place, parse_place
from seamseg.engine.outputs.shards import SHARD_PHOTOS, ShardOutputs
from seamseg.engine.outputs.staging import MakeWriters

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
