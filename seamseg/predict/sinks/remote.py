"""Outputs that are made in a folder of this process and brought to a store: what files and shards have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from seamseg.predict.manifest import Done, Line, ManifestFolder
from seamseg.predict.sinks.base import Begun, Desk
from seamseg.predict.sinks.file_store import FolderStore, Store, UrlStore
from seamseg.predict.sinks.folder import finish_formats
from seamseg.predict.sinks.lock import FolderLock
from seamseg.predict.sinks.manifest_parts import Ledger
from seamseg.predict.sinks.scratch import MakeWriters, Staging
from seamseg.predict.sinks.target import Place
from seamseg.predict.sources.base import Container, Source
from seamseg.utils.distributed import World
from seamseg.utils.errors import SeamsegError


class StoredOutputs:
    """See `Outputs`; the parts that differ are left to :class:`FileOutputs` and :class:`ShardOutputs`.

    Parameters
    ----------
    place : OUT
    make_writers : the formats, for a folder
    head : of the manifest

    Raises
    ------
    InputError
        if the place cannot be written to
    """

    deep = False
    """Whether outputs lie in sub-folders of the place"""

    def __init__(self, place: Place, make_writers: MakeWriters, head: Line) -> None:
        self.place = place
        self.head = head
        self.make_writers = make_writers
        self.writers = make_writers(place.path or Path(place.folder))
        # a store must be able to rename what was made for it
        self.beside: Path | None = None if place.is_url else place.path
        self.lock = FolderLock(self.beside)
        self.store: Store = UrlStore(place.folder) if self.beside is None else FolderStore(self.beside)

    def check(self, sources: Sequence[Source | Container]) -> None:
        """See `Outputs`"""

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> Begun:
        """See `Outputs`"""
        names = self.store.sizes(self.deep)
        staging = Staging(self.beside, self.make_writers)
        try:
            ledger = Ledger(self.store, self.head, staging.folder)
            ledger.tidy(names)
            if restart:
                self.forget(ledger, names)
                return self.begun({}, names)
            local = ledger.fetch(names)
            self.admit(local, sources, names)
            there = _IsThere(names)
            # what no longer holds must not come true again, as by a later shard of the same number
            local.merge(keep=there)
            done = local.done(there)
            ledger.replace(local, names)
            return self.begun(done, names)
        except OSError as error:
            raise SeamsegError(f"{error.filename or staging.folder}: {error.strerror or error}") from error
        finally:
            staging.close()

    def end(self, lines: Sequence[int]) -> None:
        """See `Outputs`"""
        names = {name: size for name, size in self.store.sizes(False).items() if name.startswith("predictions")}
        staging = Staging(self.beside, self.make_writers)
        try:
            ledger = Ledger(self.store, self.head, staging.folder)
            local = ledger.fetch(names)
            local.merge({local.rank_path(rank): count for rank, count in enumerate(lines)})
            with staging.room() as room:
                finish_formats(room.writers, local)
                for name in room.files():
                    self.store.put(room.folder / name, name)
            ledger.replace(local, names)
        except OSError as error:
            raise SeamsegError(f"{error.filename or staging.folder}: {error.strerror or error}") from error
        finally:
            staging.close()

    def forget(self, ledger: Ledger, names: dict[str, int]) -> None:
        """Start over; what is removed is taken from the names."""
        ledger.forget(names)

    def admit(self, local: ManifestFolder, sources: Sequence[Source | Container], names: dict[str, int]) -> None:
        """Look at what is there before it is merged; may remove outputs, from the names too."""

    def begun(self, done: dict[str, Done], names: dict[str, int]) -> Begun:
        """What the processes are told."""
        return Begun(done)

    def staging(self) -> Staging:
        """The folder of a process that works together with others."""
        return Staging(self.beside, self.make_writers, sweep=self.beside is None)

    def desk(self, world: World, begun: Begun, number: Callable[[], int]) -> Desk:
        """See `Outputs`"""
        raise NotImplementedError


class _IsThere:
    """Whether the outputs of a line are among some names, and not empty."""

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names

    def __call__(self, line: Line) -> bool:
        return line["status"] != "ok" or all(self._names.get(output, 0) > 0 for output in line["outputs"])
