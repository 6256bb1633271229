"""Where `predict` writes its outputs: a folder, a URL, or tar shards in either."""

from __future__ import annotations

from pathlib import Path

from seamseg.predict.manifest import Line
from seamseg.predict.part import Part
from seamseg.predict.sinks.base import Sink
from seamseg.predict.sinks.folder import FolderSink
from seamseg.predict.sinks.remote import UrlSink
from seamseg.predict.sinks.scratch import MakeWriters
from seamseg.predict.sinks.shards import SHARD_PHOTOS, ShardSink
from seamseg.predict.sinks.target import OutputTarget, parse_target

__all__ = ["SHARD_PHOTOS", "FolderSink", "OutputTarget", "Sink", "open_sink", "parse_target"]


def open_sink(
    target: OutputTarget,
    make_writers: MakeWriters,
    head: Line,
    shard_photos: int = SHARD_PHOTOS,
    part: Part | None = None,
) -> Sink:
    """Return the sink for a target, with at most `shard_photos` in a shard.

    Other parameters are those of :class:`seamseg.predict.sinks.remote.StoredSink`.

    Raises
    ------
    InputError
        if the target cannot be written to, or the formats cannot be written there
    """
    if target.shards is not None:
        return ShardSink(target, make_writers, head, part, shard_photos)
    if target.is_url:
        return UrlSink(target, make_writers, head, part)
    out = Path(target.folder)
    return FolderSink(out, make_writers(out), head, part)
