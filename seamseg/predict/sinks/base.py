"""What `predict` needs of the place its outputs go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from seamseg.predict.manifest import Done, Line
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.scratch import Room
from seamseg.predict.sources.base import Container, Source
from seamseg.predict.writers.base import Writer
from seamseg.utils.distributed import World


@dataclass(frozen=True)
class Begun:
    """What the main process has found: photos that are done, by name, and numbers of shards that are there."""

    done: Mapping[str, Done]
    taken: tuple[int, ...] = ()


class Desk(Protocol):
    """Where a process hands in its photos; may be used from several threads.

    Attributes
    ----------
    names : of the photos that were handed in or left out, and whether they went well
    """

    names: dict[str, bool]

    def place(self) -> AbstractContextManager[Room]:
        """Where one photo is written, and by what."""

    def hand_in(self, source: Source, room: Room, line: Line) -> None:
        """All formats have written: keep it, and its line of the manifest once its outputs cannot be lost any more.

        Called within the block of :meth:`place`.
        """

    def leave_out(self, line: Line) -> None:
        """The line of a photo without outputs."""

    def close(self) -> None:
        """All that was handed in is in place, with its lines, when it returns."""


class Outputs(Protocol):
    """A place for outputs, with the manifest that says what is done.

    Attributes
    ----------
    writers : the formats, to be asked but not to write
    lock : of the place
    """

    writers: Sequence[Writer]
    lock: FolderLock

    def check(self, sources: Sequence[Source | Container]) -> None:
        """InputError if the photos do not go with the place."""

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> Begun:
        """Put in order what earlier runs have left; by the main process, before the others work.

        Raises
        ------
        InputError
            if it is of another model or other settings
        """

    def desk(self, world: World, begun: Begun, number: Callable[[], int]) -> Desk:
        """The desk of this process; `number` gives 0, 1, 2, ..., each once over all processes."""

    def end(self, lines: Sequence[int]) -> None:
        """One manifest, and the files that formats have for all photos; by the main process, when all are closed.

        Parameters
        ----------
        lines : that each process has written
        """
