"""Outputs as files of a folder of this machine, written where they stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from seamseg.predict.manifest import MANIFEST, Line, ManifestFolder, ManifestWriter
from seamseg.predict.sinks.base import Begun, Desk
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.scratch import Room
from seamseg.predict.sources.base import Container, Source
from seamseg.predict.writers.base import Writer
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.files import cannot_write


class FolderOutputs:
    """See `Outputs`.

    Parameters
    ----------
    out : the folder
    writers : formats that write there
    head : of the manifest
    """

    def __init__(self, out: Path, writers: Sequence[Writer], head: Line) -> None:
        self.writers = writers
        self.lock = FolderLock(out)
        self.manifest = ManifestFolder(out, head)

    def check(self, sources: Sequence[Source | Container]) -> None:
        """See `Outputs`"""

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> Begun:
        """See `Outputs`"""
        # in a new folder none of a million photos is looked for
        used = self.manifest.out.is_dir() and any(self.manifest.out.iterdir())
        if used and not restart and not self.manifest.exists():
            for path in planned(self.writers, sources):
                if path.exists():
                    raise strangers(str(path))
        return Begun(self.manifest.begin(restart))

    def desk(self, world: World, begun: Begun, number: Callable[[], int]) -> Desk:
        """See `Outputs`"""
        path = self.manifest.rank_path(world.rank)
        return _FolderDesk(Room(self.manifest.out, self.writers), ManifestWriter(path, self.manifest.head))

    def end(self, lines: Sequence[int]) -> None:
        """See `Outputs`"""
        self.manifest.merge({self.manifest.rank_path(rank): count for rank, count in enumerate(lines)})
        finish_formats(self.writers, self.manifest)


def finish_formats(writers: Sequence[Writer], manifest: ManifestFolder) -> None:
    """Let formats write what they have for all photos; SeamsegError if that fails."""
    for position, writer in enumerate(writers):
        try:
            writer.finish(manifest.records(position))
        except OSError as error:
            raise cannot_write(error.filename or "output", error) from error


def planned(writers: Sequence[Writer], sources: Sequence[Source | Container]) -> Iterator[Path]:
    """The files that will be written, as far as they are known beforehand."""
    for writer in writers:
        yield from writer.finals()
        for source in sources:
            if isinstance(source, Source):
                yield from writer.paths(source)


def strangers(place: str) -> InputError:
    """The error about a file in the way that no manifest knows."""
    return InputError(
        f"{place}: is there, and no {MANIFEST} says that `seamseg predict` has written it; choose another place for "
        "the outputs, or overwrite it with --restart"
    )


def output_names(room: Room, source: Source) -> list[str]:
    """The files of a photo that are known beforehand, below the folder that the formats write to."""
    return [path.relative_to(room.folder).as_posix() for writer in room.writers for path in writer.paths(source)]


class _FolderDesk:
    def __init__(self, room: Room, lines: ManifestWriter) -> None:
        self.names = lines.names
        self._room = room
        self._lines = lines

    @contextmanager
    def place(self) -> Iterator[Room]:
        yield self._room

    def hand_in(self, source: Source, room: Room, line: Line) -> None:
        self._lines.add({**line, "outputs": output_names(room, source)})

    def leave_out(self, line: Line) -> None:
        self._lines.add(line)

    def close(self) -> None:
        self._lines.close()
