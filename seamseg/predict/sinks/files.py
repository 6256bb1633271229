"""Outputs as files at a URL: those of a photo are brought there when all are made, then its line counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from seamseg.predict.manifest import Line, ManifestFolder
from seamseg.predict.sinks.base import Begun, Desk
from seamseg.predict.sinks.file_store import Store
from seamseg.predict.sinks.folder import output_names, planned, strangers
from seamseg.predict.sinks.manifest_parts import put_part
from seamseg.predict.sinks.remote import StoredOutputs
from seamseg.predict.sinks.scratch import Room, Staging
from seamseg.predict.sinks.target import plain
from seamseg.predict.sources.base import Container, Source
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

PART_SECONDS = 20.0
"""Between two parts of the manifest: the work that a kill may cost."""


class FileOutputs(StoredOutputs):
    """See `Outputs`."""

    deep = True

    def check(self, sources: Sequence[Source | Container]) -> None:
        """InputError if an output would overwrite a photo at a URL."""
        photos = {plain(source.address) for source in sources if isinstance(source, Source) and source.address}
        for name in self._planned(sources) if photos else ():
            if plain(address := self.store.address(name)) in photos:
                raise InputError(f"{address}: this output would overwrite an input photo; choose another place")

    def admit(self, local: ManifestFolder, sources: Sequence[Source | Container], names: dict[str, int]) -> None:
        """InputError if files are in the way that no manifest knows."""
        if local.exists():
            return
        for name in self._planned(sources):
            if name in names:
                raise strangers(self.store.address(name))

    def _planned(self, sources: Sequence[Source | Container]) -> Iterator[str]:
        folder = self.place.path or Path(self.place.folder)
        return (path.relative_to(folder).as_posix() for path in planned(self.writers, sources))

    def desk(self, world: World, begun: Begun, number: Callable[[], int]) -> Desk:
        """See `Outputs`"""
        return _FileDesk(self.store, self.staging(), self.head, world.rank)


class _FileDesk:
    def __init__(self, store: Store, staging: Staging, head: Line, rank: int) -> None:
        self.names: dict[str, bool] = {}
        self._store = store
        self._staging = staging
        self._head = head
        self._rank = rank
        self._lines: list[Line] = []
        self._parts = 0
        self._last = time.monotonic()
        self._lock = threading.Lock()

    def place(self) -> AbstractContextManager[Room]:
        return self._staging.room()

    def hand_in(self, source: Source, room: Room, line: Line) -> None:
        for name in room.files():
            self._store.put(room.folder / name, name)
        self._add({**line, "outputs": output_names(room, source)})

    def leave_out(self, line: Line) -> None:
        self._add(line)

    def _add(self, line: Line) -> None:
        with self._lock:
            self._lines.append(line)
            self.names[line["name"]] = line["status"] == "ok"
            if time.monotonic() - self._last < PART_SECONDS:
                return
            lines, number = self._take()
        put_part(self._store, self._head, self._rank, number, lines)

    def _take(self) -> tuple[list[Line], int]:
        lines, self._lines = self._lines, []
        self._parts, self._last = self._parts + 1, time.monotonic()
        return lines, self._parts

    def close(self) -> None:
        try:
            lines, number = self._take()
            if lines:
                put_part(self._store, self._head, self._rank, number, lines)
        finally:
            self._staging.close()
