"""The manifest in a store whose files cannot be appended to: parts of it, which are merged now and then.

A process puts its lines there as `predictions.rank<k>.<n>.jsonl`, each a manifest of its own. The main process makes
`predictions.jsonl` of them when a run is started again, and in the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seamseg.predict.manifest import MANIFEST, Line, ManifestFolder, differences, parsed
from seamseg.predict.sinks.file_store import Store
from seamseg.utils.errors import InputError

_PART = re.compile(r"predictions\.rank(\d+)\.\d+\.jsonl")
_PARTIAL = re.compile(r"(.*/)?\.[^/]*\.partial")


def part_name(rank: int, number: int) -> str:
    """Name of a part."""
    return f"predictions.rank{rank}.{number:06}.jsonl"


def put_part(store: Store, head: Line, rank: int, number: int, lines: Sequence[Line]) -> None:
    """Put lines there as one part."""
    text = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in (head, *lines))
    store.put_bytes(text.encode(), part_name(rank, number))


class Ledger:
    """All manifests of a store, as the main process handles them.

    Parameters
    ----------
    store : of the outputs
    head : of this run
    folder : of this machine, for copies
    """

    def __init__(self, store: Store, head: Line, folder: Path) -> None:
        self.store = store
        self.head = head
        self.folder = folder

    def fetch(self, names: Mapping[str, int]) -> ManifestFolder:
        """Copy all manifests among these names here, the parts of each process as one file.

        Raises
        ------
        InputError
            if one is of another run, or no manifest
        """
        local = ManifestFolder(self.folder, self.head)
        for path in self.folder.glob("*.jsonl"):
            path.unlink()
        for name in sorted(names):
            if name == MANIFEST:
                self.store.fetch(name, local.path)
                with open(local.path, "rb") as file:
                    self._check(name, file.readline())
            elif part := _PART.fullmatch(name):
                first, _, rest = self.store.read(name).partition(b"\n")
                self._check(name, first + b"\n")
                with open(local.rank_path(int(part[1])), "ab") as file:
                    if file.tell() == 0:
                        file.write(first + b"\n")
                    # a store that breaks its word may hold a torn line
                    file.write(rest[: rest.rfind(b"\n") + 1])
        return local

    def _check(self, name: str, first: bytes) -> None:
        head = parsed(first)
        if head is None or "seamseg_predictions" not in head:
            raise InputError(f"{self.store.address(name)}: not a manifest of `seamseg predict`; --restart replaces it")
        if found := differences(head, self.head):
            raise InputError(
                f"{self.store.address('')}: holds predictions of another run: {', '.join(found)}; choose another "
                "place, or start over with --restart"
            )

    def lines(self, names: Mapping[str, int]) -> Iterator[Line]:
        """What all manifests say, whatever run they are of."""
        copy = self.folder / "any.jsonl"
        for name in names:
            if name == MANIFEST or _PART.fullmatch(name):
                self.store.fetch(name, copy)
                with open(copy, "rb") as file:
                    yield from filter(None, map(parsed, file))

    def replace(self, local: ManifestFolder, names: Mapping[str, int]) -> None:
        """Put the merged manifest there, then remove the parts among the names."""
        self.store.put(local.path, MANIFEST)
        for name in names:
            if _PART.fullmatch(name):
                self.store.remove(name)

    def forget(self, names: Mapping[str, int]) -> None:
        """Remove all manifests, the merged one last."""
        for name in sorted(names, key=lambda name: name == MANIFEST):
            if name == MANIFEST or _PART.fullmatch(name):
                self.store.remove(name)

    def tidy(self, names: Mapping[str, int]) -> None:
        """Remove what killed processes have left half written."""
        for name in names:
            if _PARTIAL.fullmatch(name):
                self.store.remove(name)
