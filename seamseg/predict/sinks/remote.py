"""Outputs that are made in a scratch folder and then put in a store: files at a URL, and what shards share with them.

Files of a store cannot be appended to. So each process puts its lines of the manifest there in parts,
`predictions.rank<k>.<n>.jsonl`, each a manifest of its own. The main process merges them into `predictions.jsonl` at
the start and at the end of a run. Their names begin as those of :class:`seamseg.predict.manifest.ManifestNames`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from seamseg.predict.manifest import (
    Done,
    Line,
    ManifestFolder,
    ManifestNames,
    differences,
    is_whole,
    parsed,
    without_part,
)
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
from seamseg.predict.sinks.scratch import MakeWriters, ScratchDir, Staging
from seamseg.predict.sinks.store import FolderStore, Store, UrlStore
from seamseg.predict.sinks.target import OutputTarget, normalized
from seamseg.predict.sources.base import Container, Source
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

PART_SECONDS = 20.0
"""Time between two parts of the manifest of a URL: the work that a kill may cost."""

_PART = re.compile(r"(predictions(?:\.part\d+of\d+)?\.rank\d+)\.\d+\.jsonl")
"""Part of the manifest of a process; group 1 is the name of that without `.jsonl`."""
_PARTIAL = re.compile(r"(.*/)?\.[^/]*\.partial")


class ManifestParts:
    """The manifests in a store, as the main process handles them.

    Parameters
    ----------
    store : store of the outputs
    head : first line of the manifests of this run
    folder : local, for copies
    part : the images of this run; None for all
    """

    def __init__(self, store: Store, head: Line, folder: Path, part: Part | None) -> None:
        self.store = store
        self.head = head
        self.folder = folder
        self.manifest = ManifestFolder(folder, head, part)

    def fetch(self, names: Mapping[str, int]) -> ManifestFolder:
        """Copy the manifests among these names that count for this run, the parts of each process as one file.

        Raises
        ------
        InputError
            if one is of another run, or not a manifest
        """
        for path in self.folder.glob("*.jsonl"):
            path.unlink()
        for name in sorted(names):
            whole = _whole(name)
            if not self.manifest.names.is_read(whole):
                continue
            local = self.folder / whole
            if name == whole:
                self.store.fetch(name, local)
                with open(local, "rb") as file:
                    self._check(name, file.readline())
            else:
                first, _, rest = self.store.read(name).partition(b"\n")
                self._check(name, first + b"\n")
                with open(local, "ab") as file:
                    if file.tell() == 0:
                        file.write(first + b"\n")
                    # a store whose writes are not atomic may hold a torn line
                    file.write(rest[: rest.rfind(b"\n") + 1])
        return self.manifest

    def check_others(self, names: Mapping[str, int]) -> None:
        """Raise InputError if a manifest that this run does not replace, as that of another part, is of another run."""
        # one file of each process is enough
        for whole, name in {_whole(name): name for name in sorted(names, reverse=True)}.items():
            if self.manifest.names.is_other(whole):
                try:
                    content = self.store.read(name)
                except SeamsegError as error:
                    if isinstance(error.__cause__, FileNotFoundError):  # another part has just merged its files
                        continue
                    raise
                self._check(name, content.partition(b"\n")[0] + b"\n")

    def _check(self, name: str, first: bytes) -> None:
        head = parsed(first)
        if head is None or "seamseg_predictions" not in head:
            raise InputError(
                f"{self.store.address(name)}: not a manifest of `seamseg predict`; `restart=True` replaces it"
            )
        if found := differences(head, self.head):
            raise InputError(
                f"{self.store.address('')}: holds predictions of another run: {', '.join(found)}; choose another "
                f"folder or URL, or start over with `restart=True`{without_part(self.manifest.names.part)}"
            )

    def lines(self, names: Mapping[str, int]) -> Iterator[Line]:
        """Iterate over the lines of all manifests that this run replaces, whatever model they are of."""
        copy = self.folder / "any.jsonl"
        for name in names:
            if self._is_own(name):
                self.store.fetch(name, copy)
                with open(copy, "rb") as file:
                    yield from filter(None, map(parsed, file))

    def replace(self, local: ManifestFolder, names: Mapping[str, int]) -> None:
        """Put the merged manifest in the store, then remove the parts among the names."""
        self.store.put(local.path, local.path.name)
        for name in names:
            if self._is_own(name) and name != local.path.name:
                self.store.remove(name)

    def remove(self, names: Mapping[str, int]) -> None:
        """Remove all manifests that this run replaces, the merged one last."""
        for name in sorted(filter(self._is_own, names), key=lambda name: name == self.manifest.path.name):
            self.store.remove(name)

    def remove_partial(self, names: Mapping[str, int]) -> None:
        """Remove incomplete files of killed processes."""
        for name in names:
            if _PARTIAL.fullmatch(name):
                self.store.remove(name)

    def _is_own(self, name: str) -> bool:
        return self.manifest.names.is_own(_whole(name))


def _whole(name: str) -> str:
    """Return the name of the manifest that a file is a part of, or its own."""
    part = _PART.fullmatch(name)
    return name if part is None else f"{part[1]}.jsonl"


class PartWriter:
    """Writes the parts of the manifest of one process, of that name; may be used from several threads."""

    def __init__(self, store: Store, head: Line, name: str) -> None:
        self._store = store
        self._head = head
        self._stem = name.removesuffix(".jsonl")
        self._parts = 0
        self._lock = threading.Lock()

    def put(self, lines: Sequence[Line]) -> None:
        """Put lines in the store as one part."""
        with self._lock:
            self._parts += 1
            number = self._parts
        text = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in (self._head, *lines))
        self._store.put_bytes(text.encode(), f"{self._stem}.{number:06}.jsonl")


class StoredWriter(SinkWriter):
    """Base of the writers of :class:`StoredSink`."""

    def __init__(self, store: Store, staging: Staging, parts: PartWriter) -> None:
        self.names = {}
        self._store = store
        self._staging = staging
        self._parts = parts
        self._lock = threading.Lock()

    def scratch_dir(self) -> AbstractContextManager[ScratchDir]:
        """See `SinkWriter`."""
        return self._staging.scratch_dir()


class StoredSink(Sink):
    """See `Sink`; what differs is left to :class:`UrlSink` and :class:`seamseg.predict.sinks.shards.ShardSink`.

    Parameters
    ----------
    target : OUT
    make_writers : creates the formats for a folder
    head : first line of the manifest
    part : the images of this run; None for all

    Raises
    ------
    InputError
        if the target cannot be written to
    """

    deep = False
    """Whether outputs are in sub-folders of the target."""

    def __init__(self, target: OutputTarget, make_writers: MakeWriters, head: Line, part: Part | None = None) -> None:
        self.target = target
        self.head = head
        self.part = part
        self.make_writers = make_writers
        self.writers = make_writers(target.path or Path(target.folder))
        # files are moved from the scratch folder, which must be on the same file system
        self._scratch_parent: Path | None = None if target.is_url else target.path
        self.lock = FolderLock(self._scratch_parent, part)
        self.store: Store = (
            UrlStore(target.folder) if self._scratch_parent is None else FolderStore(self._scratch_parent)
        )

    def begin(self, sources: Sequence[Source | Container], restart: bool) -> EarlierResults:
        """See `Sink`."""
        names = self.store.sizes(self.deep)
        with self._manifests() as (parts, _):
            if self.part is None:  # other parts may be writing theirs
                parts.remove_partial(names)
            parts.check_others(names)
            if restart:
                self.remove_earlier(parts, names)
                return self.earlier({}, names)
            local = parts.fetch(names)
            self.check_existing(local, sources, names)

            def is_complete(line: Line) -> bool:
                return line["status"] != "ok" or is_whole(line, lambda name: names.get(name, -1))

            # lines without outputs must go: a later shard may get the same number
            local.merge(keep=is_complete)
            done = local.done(is_complete)
            parts.replace(local, names)
            return self.earlier(done, names)

    def finish(self, lines: Sequence[int]) -> None:
        """See `Sink`."""
        names = {name: size for name, size in self.store.sizes(False).items() if name.startswith("predictions")}
        with self._manifests() as (parts, staging):
            local = parts.fetch(names)
            local.merge({local.rank_path(rank): count for rank, count in enumerate(lines)})
            if self.part is None:
                with staging.scratch_dir() as scratch:
                    finish_formats(scratch.writers, local)
                    for name in scratch.files():
                        self.store.put(scratch.folder / name, name)
            parts.replace(local, names)

    @contextmanager
    def _manifests(self) -> Iterator[tuple[ManifestParts, Staging]]:
        staging = self.staging(alone=self.part is None)
        try:
            yield ManifestParts(self.store, self.head, staging.folder, self.part), staging
        except OSError as error:
            raise SeamsegError(f"{error.filename or staging.folder}: {error.strerror or error}") from error
        finally:
            staging.close()

    def remove_earlier(self, parts: ManifestParts, names: dict[str, int]) -> None:
        """Start over: remove manifests, and outputs that would be in the way, also from the names."""
        parts.remove(names)

    def check_existing(
        self, local: ManifestFolder, sources: Sequence[Source | Container], names: Mapping[str, int]
    ) -> None:
        """Raise InputError if existing outputs do not allow this run."""

    def earlier(self, done: Mapping[str, Done], names: Mapping[str, int]) -> EarlierResults:
        """Return the results of earlier runs."""
        return EarlierResults(done)

    def staging(self, alone: bool = False) -> Staging:
        """Return the temporary folder of a process that works together with others, or alone."""
        return Staging(self._scratch_parent, self.make_writers, sweep=alone or self._scratch_parent is None)

    def part_writer(self, rank: int) -> PartWriter:
        """Return the writer of the manifest of a process."""
        return PartWriter(self.store, self.head, ManifestNames(self.part).of_rank(rank))


class UrlSink(StoredSink):
    """Outputs as files at a URL: those of an image are uploaded, then its line is added. See `Sink`."""

    deep = True

    def check(self, sources: Sequence[Source | Container]) -> None:
        """Raise InputError if an output would overwrite an image at a URL."""
        photos = {normalized(source.address) for source in sources if isinstance(source, Source) and source.address}
        for name in self._planned(sources) if photos else ():
            if normalized(address := self.store.address(name)) in photos:
                raise InputError(f"{address}: this output would overwrite an input image; choose another place")

    def check_existing(
        self, local: ManifestFolder, sources: Sequence[Source | Container], names: Mapping[str, int]
    ) -> None:
        """Raise InputError if an output exists that no manifest lists."""
        if local.exists():
            return
        for name in self._planned(sources):
            if name in names:
                raise unknown_outputs(self.store.address(name))

    def _planned(self, sources: Sequence[Source | Container]) -> Iterator[str]:
        folder = self.target.path or Path(self.target.folder)
        return (path.relative_to(folder).as_posix() for path in planned_outputs(self.writers, sources))

    def open_writer(self, world: World, earlier: EarlierResults, next_number: Callable[[], int]) -> SinkWriter:
        """See `Sink`."""
        return _UrlWriter(self.store, self.staging(), self.part_writer(world.rank))


class _UrlWriter(StoredWriter):
    def __init__(self, store: Store, staging: Staging, parts: PartWriter) -> None:
        super().__init__(store, staging, parts)
        self._lines: list[Line] = []
        self._last = time.monotonic()

    def commit(self, source: Source, scratch: ScratchDir, line: Line) -> None:
        for name in scratch.files():
            self._store.put(scratch.folder / name, name)
        self._add({**line, **outputs_of(scratch, source)})

    def skip(self, line: Line) -> None:
        self._add(line)

    def _add(self, line: Line) -> None:
        with self._lock:
            self._lines.append(line)
            self.names[line["name"]] = line["status"] == "ok"
            if time.monotonic() - self._last < PART_SECONDS:
                return
            lines, self._lines = self._lines, []
            self._last = time.monotonic()
        self._parts.put(lines)

    def close(self) -> None:
        try:
            if self._lines:
                self._parts.put(self._lines)
        finally:
            self._staging.close()
