"""Outputs as tar shards in the layout of WebDataset: the files of an image are adjacent and share a key.

A shard is filled in a scratch folder. When it is full, its lines are put in the store, then the shard itself under its
name. Lines whose shard does not exist are ignored. A finished shard is never changed.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath

from seamseg.config.components import registered
from seamseg.inference.photo_result import COUNTED
from seamseg.predict.manifest import Done, Line, ManifestFolder
from seamseg.predict.part import Part
from seamseg.predict.sinks.base import EarlierResults, SinkWriter
from seamseg.predict.sinks.remote import ManifestParts, PartWriter, StoredSink, StoredWriter
from seamseg.predict.sinks.scratch import MakeWriters, ScratchDir, Staging
from seamseg.predict.sinks.store import Store
from seamseg.predict.sinks.target import OutputTarget, ShardPattern
from seamseg.predict.sources.base import Container, Source, of_part
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import cannot_write

SHARD_PHOTOS = 1000
SHARD_BYTES = 1 << 30
"""Size at which a shard is full, even with fewer images."""


def key_of(name: str) -> str:
    """Return the key of an image: its name, with `%2e` for dots in the last part, where a dot would end the key."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.replace("%", "%25").replace(".", "%2e")


class ShardSink(StoredSink):
    """See `Sink`.

    Parameters
    ----------
    target, make_writers, head, part : see :class:`seamseg.predict.sinks.remote.StoredSink`
    photos : maximum number of images of a shard

    Raises
    ------
    InputError
        if a format has no :attr:`OutputFormat.member`
    """

    def __init__(
        self, target: OutputTarget, make_writers: MakeWriters, head: Line, part: Part | None, photos: int = SHARD_PHOTOS
    ) -> None:
        super().__init__(target, make_writers, head, part)
        assert target.shards is not None
        self.pattern: ShardPattern = target.shards
        self.photos = photos
        self._listed: set[str] = set()
        layouts = {type(writer) for writer in self.writers if writer.member is None}
        if layouts:
            names = ",".join(c.name for c in registered("format") if c.make in layouts)
            raise InputError(
                f"`formats={names}`: a layout of folders, without a `member` for shards: write it to a folder or URL"
            )

    def check(self, sources: Sequence[Source | Container]) -> None:
        """Raise InputError if the pattern has too few numbers."""
        if self.pattern.last is None:
            return
        mine = of_part(sources, self.part)
        shards, count = len(self._numbers(self.pattern.last)), sum(isinstance(s, Source) for s in mine)
        if count > shards * self.photos:
            raise InputError(
                f"{self.store.address(self.pattern.text)}: {count} images do not fit into {shards} shards of "
                f"{self.photos}; raise `shard_photos`, or the last number"
            )

    def remove_earlier(self, parts: ManifestParts, names: dict[str, int]) -> None:
        """Remove the shards that manifests list, then the manifests."""
        known = {output for line in parts.lines(names) for output in line.get("outputs", ())}
        self._refuse_unknown(known, names)
        for name in sorted(known & names.keys()):
            if self.pattern.number(name) is not None:
                self.store.remove(name)
                del names[name]
        super().remove_earlier(parts, names)

    def check_existing(
        self, local: ManifestFolder, sources: Sequence[Source | Container], names: Mapping[str, int]
    ) -> None:
        """Raise InputError if shards exist that no manifest lists, or an image in a finished shard has changed."""
        local.merge()
        stamps = _Stamps(sources)
        known: set[str] = set()
        for line in local.all_lines():
            if line["status"] != "ok":
                continue
            known.update(line["outputs"])
            shard = next((output for output in line["outputs"] if output in names), None)
            if shard is not None and not stamps.agree(line):
                raise InputError(
                    f"{line['source']}: changed since its outputs were written to {self.store.address(shard)}; start "
                    f"over with `restart=True`, or choose another folder or URL"
                )
        self._refuse_unknown(known, names)
        # lines may name a shard that was not written: a part cannot drop them, so it must not use the number
        self._listed = set() if self.part is None else known

    def _refuse_unknown(self, known: set[str], names: Mapping[str, int]) -> None:
        others = sorted(name for name in names if self._number(name) is not None and name not in known)
        if others:
            raise InputError(
                f"{self.store.address(others[0])}: exists already and is not of this run; choose another name for the "
                "shards, or remove it"
            )

    def earlier(self, done: Mapping[str, Done], names: Mapping[str, int]) -> EarlierResults:
        """See `StoredSink`."""
        numbers = {number for name in {*names, *self._listed} if (number := self._number(name)) is not None}
        return EarlierResults(done, tuple(sorted(numbers)))

    def _number(self, name: str) -> int | None:
        """Return the number of a shard that this run may write, by its file name; None for other files."""
        number = self.pattern.number(name)
        if number is None or self.part is None:
            return number
        return number if self.part.has(number - self.pattern.first) else None

    def _numbers(self, last: int) -> range:
        """Return the numbers of this run's shards up to the last: parts take turns."""
        first, step = (0, 1) if self.part is None else (self.part.number - 1, self.part.count)
        return range(self.pattern.first + first, last + 1, step)

    def open_writer(self, world: World, earlier: EarlierResults, next_number: Callable[[], int]) -> SinkWriter:
        """See `Sink`."""

        def free_name() -> str:
            numbers = self._numbers(0)
            chosen = numbers.start + numbers.step * next_number()
            for taken in earlier.shard_numbers:
                chosen += numbers.step * (numbers.start <= taken <= chosen)
            if self.pattern.last is not None and chosen > self.pattern.last:
                raise SeamsegError(
                    f"{self.store.address(self.pattern.text)}: more images than shards; re-run the same command with a "
                    "larger last number to resume"
                )
            return self.pattern.name(chosen)

        return _ShardWriter(self.store, self.staging(), self.part_writer(world.rank), self.photos, free_name)


class _Stamps:
    """Compares the stamps of manifest lines with those of the current files."""

    def __init__(self, sources: Sequence[Source | Container]) -> None:
        self._sources = {source.name: source for source in sources}
        self._containers: dict[str, str] = {}

    def agree(self, line: Line) -> bool:
        """Return whether an image is unchanged; True also for images that are not among the inputs any more."""
        source = self._sources.get(line["name"])
        if isinstance(source, Source):
            return bool(line["relative"] == source.relative and line["stamp"] == source.stamp())
        for folder in map(str, PurePosixPath(line["name"]).parents):
            container = self._sources.get(folder)
            if container is not None and not isinstance(container, Source):
                if folder not in self._containers:
                    self._containers[folder] = container.stamp()
                same = line["relative"].startswith(f"{container.relative}/")
                return bool(same and line["stamp"] == self._containers[folder])
        return True


class _Shard:
    """A shard that is being filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._archive = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    @property
    def size(self) -> int:
        return int(self._archive.offset)

    def add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o644
        with self._errors():
            self._archive.addfile(info, BytesIO(data))

    def close(self) -> None:
        with self._errors():
            self._archive.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.path, error) from error


class _ShardWriter(StoredWriter):
    def __init__(
        self, store: Store, staging: Staging, parts: PartWriter, photos: int, free_name: Callable[[], str]
    ) -> None:
        super().__init__(store, staging, parts)
        self._photos = photos
        self._free_name = free_name
        self._open: _Shard | None = None
        self._count = 0
        self._skipped: list[Line] = []

    def commit(self, source: Source, scratch: ScratchDir, line: Line) -> None:
        key = key_of(source.name)
        members = [(f"{key}.{w.member}", path.read_bytes()) for w in scratch.writers for path in w.paths(source)]
        members.append((f"{key}.json", _sample(line)))
        full = None
        with self._lock:
            if self._open is None:
                self._count += 1
                self._open = _Shard(self._staging.folder / f"{self._count}.tar")
            shard, self._open = self._open, None  # a shard that cannot be written is dropped
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
        self._parts.put([{**line, "outputs": [name]} for line in shard.lines])
        self._store.put(shard.path, name)
        shard.path.unlink(missing_ok=True)

    def skip(self, line: Line) -> None:
        with self._lock:
            self._skipped.append(line)
            self.names[line["name"]] = False

    def close(self) -> None:
        try:
            if self._open is not None:
                self._put(self._open)
            if self._skipped:
                self._parts.put(self._skipped)
        finally:
            self._staging.close()


def _sample(line: Line) -> bytes:
    """Return the JSON member of an image."""
    kept = ("name", "source", "relative", "height", "width", *COUNTED)
    content = {key: line[key] for key in kept if key in line}
    for record in filter(None, line["records"]):
        if "annotation" in record:
            content["segments_info"] = record["annotation"]["segments_info"]
        if "results" in record:
            content["results"] = record["results"]
    return json.dumps(content, allow_nan=False).encode()
