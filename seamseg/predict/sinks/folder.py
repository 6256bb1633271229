"""Outputs as files of a local folder, written in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seamseg.predict.manifest import Line, ManifestFolder, ManifestWriter
from seamseg.predict.part import Part
from seamseg.predict.sinks.base import (
    EarlierResults,
    Sink,
    SinkWriter,
    finish_formats,
    outputs_of,
    planned_outputs,
    unknown_outputs,
)
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.scratch import ScratchDir
from seamseg.predict.sources.base import Container, Source
from seamseg.predict.writers.base import OutputFormat
from seamseg.utils.distributed import World


class FolderSink(Sink):
    """See `Sink`.

    Parameters
    ----------
    out : the folder
    writers : formats that write there
    head : first line of the manifest
    part : the images of this run; None for all
    """

    def __init__(self, out: Path, writers: Sequence[OutputFormat[Any]], head: Line, part: Part | None = None) -> None:
        self.writers = writers
        self.part = part
        self.lock = FolderLock(out, part)
        self.manifest = ManifestFolder(out, head, part)

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> EarlierResults:
        """See `Sink`."""
        # a new folder needs no look-up of a million file names
        used = self.manifest.out.is_dir() and any(self.manifest.out.iterdir())
        if used and not restart and not self.manifest.exists():
            for path in planned_outputs(self.writers, sources):
                if os.path.exists(path):
                    raise unknown_outputs(str(path))
        return EarlierResults(self.manifest.begin(restart))

    def open_writer(self, world: World, earlier: EarlierResults, next_number: Callable[[], int]) -> SinkWriter:
        """See `Sink`."""
        path = self.manifest.rank_path(world.rank)
        return _FolderWriter(ScratchDir(self.manifest.out, self.writers), ManifestWriter(path, self.manifest.head))

    def finish(self, lines: Sequence[int]) -> None:
        """See `Sink`."""
        self.manifest.merge({self.manifest.rank_path(rank): count for rank, count in enumerate(lines)})
        if self.part is None:
            finish_formats(self.writers, self.manifest)


class _FolderWriter:
    def __init__(self, out: ScratchDir, manifest: ManifestWriter) -> None:
        self.names = manifest.names
        self._out = out
        self._manifest = manifest

    @contextmanager
    def scratch_dir(self) -> Iterator[ScratchDir]:
        yield self._out

    def commit(self, source: Source, scratch: ScratchDir, line: Line) -> None:
        self._manifest.add({**line, **outputs_of(scratch, source)})

    def skip(self, line: Line) -> None:
        self._manifest.add(line)

    def close(self) -> None:
        self._manifest.close()
