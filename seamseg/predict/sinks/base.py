"""Sinks: where `predict` puts the outputs of images and the manifest of what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seamseg.predict.manifest import MANIFEST, Done, Line, ManifestFolder
from seamseg.predict.part import Part
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.scratch import ScratchDir
from seamseg.predict.sources.base import Container, Source
from seamseg.predict.writers import errors_of
from seamseg.predict.writers.base import OutputFormat
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.files import cannot_write


@dataclass(frozen=True)
class EarlierResults:
    """Results of earlier runs: the images that are done, by name, and the numbers of existing shards."""

    done: Mapping[str, Done]
    shard_numbers: tuple[int, ...] = ()


class SinkWriter(Protocol):
    """Writes the outputs of one process; may be used from several threads.

    Attributes
    ----------
    names : names of the images that were committed (True) or skipped (False)
    """

    names: dict[str, bool]

    def scratch_dir(self) -> AbstractContextManager[ScratchDir]:
        """Return the folder and the writers for one image."""

    def commit(self, source: Source, scratch: ScratchDir, line: Line) -> None:
        """Keep the outputs of an image, and add its line to the manifest once they are durable.

        Called within the block of :meth:`scratch_dir`, after all formats have written.
        """

    def skip(self, line: Line) -> None:
        """Add the line of an image without outputs."""

    def close(self) -> None:
        """Put everything that was committed in place, with its lines."""


class Sink(Protocol):
    """A target of outputs, with its manifest.

    Attributes
    ----------
    writers : the formats, for their properties and file names only
    lock : lock of the target
    part : the images of this run; None for all
    """

    writers: Sequence[OutputFormat[Any]]
    lock: FolderLock
    part: Part | None

    def check(self, sources: Sequence[Source | Container]) -> None:
        """Raise InputError if the images cannot be written to this target."""
        return

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> EarlierResults:
        """Tidy up and return the results of earlier runs; called by the main process before the others start.

        Parameters
        ----------
        sources : images of this run, those of its part only
        restart : forget earlier results

        Raises
        ------
        InputError
            if they are of another model or other settings
        """

    def open_writer(self, world: World, earlier: EarlierResults, next_number: Callable[[], int]) -> SinkWriter:
        """Return the writer of this process; `next_number` counts 0, 1, 2, ... over all processes."""

    def finish(self, lines: Sequence[int]) -> None:
        """Merge the manifests and write the summary files of formats; called by the main process after all are closed.

        The run of a part merges its own manifests only, and writes no summary.

        Parameters
        ----------
        lines : number of lines that each process has written
        """


def finish_formats(writers: Sequence[OutputFormat[Any]], manifest: ManifestFolder) -> None:
    """Let formats write their summary files; SeamsegError if that fails."""
    for position, writer in enumerate(writers):
        try:
            with errors_of(writer):
                writer.finish(manifest.records(position))
        except OSError as error:
            raise cannot_write(error.filename or "output", error) from error


def planned_outputs(writers: Sequence[OutputFormat[Any]], sources: Sequence[Source | Container]) -> Iterator[Path]:
    """Iterate over the files that will be written, as far as they are known in advance."""
    for writer in writers:
        yield from writer.finals()
        for source in sources:
            if isinstance(source, Source):
                yield from writer.paths(source)


def outputs_of(scratch: ScratchDir, source: Source) -> Line:
    """Return the entries of a line about the planned files of an image, relative to the folder of the writers.

    `empty` has those without a byte, such as a list of no instances.
    """
    paths = [path for writer in scratch.writers for path in writer.paths(source)]
    names = [path.relative_to(scratch.folder).as_posix() for path in paths]
    empty = [name for name, path in zip(names, paths) if path.is_file() and path.stat().st_size == 0]
    return {"outputs": names, "empty": empty} if empty else {"outputs": names}


def unknown_outputs(address: str) -> InputError:
    """Return the error about an existing file that no manifest lists."""
    return InputError(
        f"{address}: exists already, and no {MANIFEST} lists it as an output of `seamseg predict`; choose another "
        f"folder or URL for the outputs, or overwrite it with `restart=True`"
    )
