"""Outputs as tar shards in the layout of WebDataset: the files of a photo one after the other, under one key.

A shard is made in a folder of its process. When it is full its lines are put in the store, then the shard itself
appears there under its name, whole; lines whose shard did not appear count for nothing.
"""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

from seamseg.predict.manifest import Done, Line, ManifestFolder
from seamseg.predict.sinks.base import Begun, Desk
from seamseg.predict.sinks.file_store import Store
from seamseg.predict.sinks.manifest_parts import Ledger, put_part
from seamseg.predict.sinks.remote import StoredOutputs
from seamseg.predict.sinks.scratch import MakeWriters, Room, Staging
from seamseg.predict.sinks.target import Numbering, Place
from seamseg.predict.sources.base import Container, Source
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import cannot_write

SHARD_PHOTOS = 1000
SHARD_BYTES = 1 << 30
"""Where a shard ends, whichever comes first"""


def key_of(name: str) -> str:
    """The key of a photo: its name, where a dot in the last part, which would end the key, is `%2e`."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.replace("%", "%25").replace(".", "%2e")


class ShardOutputs(StoredOutputs):
    """See `Outputs`.

    Parameters
    ----------
    photos : of a shard at most

    Raises
    ------
    InputError
        if a format is a layout of folders
    """

    def __init__(self, place: Place, make_writers: MakeWriters, head: Line, photos: int = SHARD_PHOTOS) -> None:
        super().__init__(place, make_writers, head)
        assert place.shards is not None
        self.numbering: Numbering = place.shards
        self.photos = photos
        if any(writer.member is None for writer in self.writers):
            raise InputError(
                "--format cityscapes and vistas are layouts of folders for the official tools: write them to a "
                "folder or URL; shards take overlay, coco, raw and --anonymize"
            )

    def check(self, sources: Sequence[Source | Container]) -> None:
        """InputError if there are not enough numbers."""
        if self.numbering.last is None:
            return
        shards, count = self.numbering.last - self.numbering.first + 1, sum(isinstance(s, Source) for s in sources)
        if count > shards * self.photos:
            raise InputError(
                f"{self.store.address(self.numbering.text)}: {count} photos do not go into {shards} shards of "
                f"{self.photos}; raise --shard-photos, or the last number"
            )

    def forget(self, ledger: Ledger, names: dict[str, int]) -> None:
        """Start over: remove the shards that manifests name, then these."""
        known = {output for line in ledger.lines(names) for output in line.get("outputs", ())}
        self._refuse_others(known, names)
        for name in sorted(known & names.keys()):
            if self.numbering.owns(name):
                self.store.remove(name)
                del names[name]
        super().forget(ledger, names)

    def admit(self, local: ManifestFolder, sources: Sequence[Source | Container], names: dict[str, int]) -> None:
        """Take photos that have changed since out of their shards, where they would be a second time in the end.

        Raises
        ------
        InputError
            if there are shards of somebody else, the photos themselves perhaps
        """
        local.merge()
        stamps = _Stamps(sources)
        known: set[str] = set()
        old: dict[str, set[str]] = {}
        for line in local.lines():
            if line["status"] == "ok":
                known.update(line["outputs"])
                if not stamps.agree(line):
                    for shard in names.keys() & line["outputs"]:
                        old.setdefault(shard, set()).update(line["members"])
        self._refuse_others(known, names)
        for shard, members in sorted(old.items()):
            if not self._without(shard, members, local.out):
                self.store.remove(shard)
                del names[shard]
        local.merge(keep=lambda line: line["status"] != "ok" or stamps.agree(line))

    def _without(self, shard: str, members: set[str], folder: Path) -> bool:
        """Put a shard there anew, without some of its members; False if nothing would be left of it."""
        before, after = folder / "before.tar", folder / "after.tar"
        self.store.fetch(shard, before)
        new, left = _Shard(after), False
        try:
            with tarfile.open(before) as archive:
                for info in archive:
                    stream = archive.extractfile(info)
                    if info.name not in members and stream is not None:
                        new.add(info.name, stream.read())
                        left = True
        except (tarfile.TarError, EOFError) as error:
            raise SeamsegError(
                f"{self.store.address(shard)}: broken ({error}), and photos in it have changed; remove it, and the "
                "same command does its photos again"
            ) from error
        finally:
            new.close()
        if left:
            self.store.put(after, shard)
        return left

    def _refuse_others(self, known: set[str], names: Mapping[str, int]) -> None:
        others = sorted(name for name in names if self.numbering.owns(name) and name not in known)
        if others:
            raise InputError(
                f"{self.store.address(others[0])}: is there already and not of this run; choose another name for the "
                "shards, or remove it"
            )

    def begun(self, done: dict[str, Done], names: dict[str, int]) -> Begun:
        """See `StoredOutputs`"""
        before, behind = len(self.numbering.before), len(self.numbering.behind)
        shards = (name for name in names if self.numbering.owns(name))
        return Begun(done, tuple(sorted(int(name[before : len(name) - behind]) for name in shards)))

    def desk(self, world: World, begun: Begun, number: Callable[[], int]) -> Desk:
        """See `Outputs`"""

        def free_name() -> str:
            chosen = self.numbering.first + number()
            for taken in begun.taken:
                chosen += self.numbering.first <= taken <= chosen
            if self.numbering.last is not None and chosen > self.numbering.last:
                raise SeamsegError(
                    f"{self.store.address(self.numbering.text)}: there are more photos than shards; the same command "
                    "with a larger last number goes on where it was"
                )
            return self.numbering.name(chosen)

        return _ShardDesk(self.store, self.staging(), self.head, world.rank, self.photos, free_name)


class _Stamps:
    """Whether lines are of the files that the photos have now."""

    def __init__(self, sources: Sequence[Source | Container]) -> None:
        self._sources = {source.name: source for source in sources}
        self._containers: dict[str, str] = {}

    def agree(self, line: Line) -> bool:
        """True also for photos that are no longer among the inputs."""
        source = self._sources.get(line["name"])
        if isinstance(source, Source):
            return bool(line["relative"] == source.relative and line["stamp"] == source.stamp())
        for folder in PurePosixPath(line["name"]).parents:
            container: Any = self._sources.get(str(folder))
            if container is not None and not isinstance(container, Source):
                if container.name not in self._containers:
                    self._containers[container.name] = container.stamp()
                same = line["relative"].startswith(f"{container.relative}/")
                return bool(same and line["stamp"] == self._containers[container.name])
        return True


class _Shard:
    """One that is being filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._archive = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    @property
    def size(self) -> int:
        return int(self._archive.offset)  # type: ignore[attr-defined]

    def add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o644
        with self._told():
            self._archive.addfile(info, BytesIO(data))

    def close(self) -> None:
        with self._told():
            self._archive.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.path, error) from error


class _ShardDesk:
    def __init__(
        self, store: Store, staging: Staging, head: Line, rank: int, photos: int, free_name: Callable[[], str]
    ) -> None:
        self.names: dict[str, bool] = {}
        self._store = store
        self._staging = staging
        self._head = head
        self._rank = rank
        self._photos = photos
        self._free_name = free_name
        self._open: _Shard | None = None
        self._made = 0
        self._parts = 0
        self._others: list[Line] = []
        self._lock = threading.Lock()

    def place(self) -> AbstractContextManager[Room]:
        return self._staging.room()

    def hand_in(self, source: Source, room: Room, line: Line) -> None:
        key = key_of(source.name)
        members = [(f"{key}.{w.member}", w.paths(source)[0].read_bytes()) for w in room.writers]
        members.append((f"{key}.json", _sample(line)))
        full = None
        with self._lock:
            if self._open is None:
                self._made += 1
                self._open = _Shard(self._staging.folder / f"{self._made}.tar")
            shard, self._open = self._open, None  # a shard that cannot be written is left behind
            for name, data in members:
                shard.add(name, data)
            shard.lines.append({**line, "outputs": [], "members": [name for name, _ in members]})
            self.names[line["name"]] = True
            if len(shard.lines) >= self._photos or shard.size >= SHARD_BYTES:
                full = shard
            else:
                self._open = shard
        if full is not None:
            self._put(full)

    def _put(self, shard: _Shard) -> None:
        shard.close()
        name = self._free_name()
        self._put_lines([{**line, "outputs": [name]} for line in shard.lines])
        self._store.put(shard.path, name)
        shard.path.unlink(missing_ok=True)

    def _put_lines(self, lines: Sequence[Line]) -> None:
        with self._lock:
            self._parts += 1
            number = self._parts
        put_part(self._store, self._head, self._rank, number, lines)

    def leave_out(self, line: Line) -> None:
        with self._lock:
            self._others.append(line)
            self.names[line["name"]] = False

    def close(self) -> None:
        try:
            if self._open is not None:
                self._put(self._open)
            if self._others:
                self._put_lines(self._others)
        finally:
            self._staging.close()


def _sample(line: Line) -> bytes:
    """What a shard says of a photo besides its pictures."""
    content = {key: line[key] for key in ("name", "source", "relative", "height", "width", "segments")}
    entries = [record["annotation"] for record in line["records"] if record and "annotation" in record]
    if entries:
        content["segments_info"] = entries[0]["segments_info"]
    return json.dumps(content, allow_nan=False).encode()
