"""The journal of a conversion, and its account: what it used of each split, and what it skipped and why.

The journal of a split is `.prepare/<split>.jsonl` of a dataset folder; its last line is the account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seamseg.maps.formats.metadata import Metadata, pack_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.utils.errors import InputError, counted, one_line
from seamseg.utils.files import cannot_write, read_bytes, write_atomically
from seamseg.utils.limits import ANNOTATION_BYTES, parse_json

JOURNALS = ".prepare"

FURTHER_FRAMES = "all frames but the first of an image"
"""Reason of the writer for images with several frames."""

Skips = dict[str, tuple[int, str]]
"""Number of skipped items and the first of them, by reason: a phrase such as "image without labels" """


def add_skipped(skips: Skips, reason: str, item: object, count: int = 1) -> None:
    """Add `count` skipped items, the first of which is `item`."""
    before, first = skips.get(reason, (0, str(item)))
    skips[reason] = (before + count, first)


@dataclass
class SplitAccount:
    """The used and the skipped parts of a split; numbers of segments without the background, of objects with crowds.

    `void` is the share of the pixels.
    """

    images: int = 0
    segments: int = 0
    objects: int = 0
    skipped: Skips = field(default_factory=dict)
    void: float = 0.0

    def lines(self, split: str) -> list[str]:
        """Return the account as lines of text."""
        used = f"{split}: used {counted(self.images, 'image')}, {counted(self.segments, 'segment')}"
        skipped = [
            one_line(f"{split}: skipped {count}: {reason} ({'the first is ' if count > 1 else ''}{first})")
            for reason, (count, first) in self.skipped.items()
        ]
        return [f"{used}, of which {counted(self.objects, 'object')}", *skipped]


def read_accounts(root: Path) -> dict[str, SplitAccount | None]:
    """Return the accounts of a dataset folder by split, None after an interruption; InputError for other content."""
    found: dict[str, SplitAccount | None] = {}
    for path in sorted((root / JOURNALS).glob("*.jsonl")):
        try:
            last = parse_json(read_bytes(path, "journal of the conversion", ANNOTATION_BYTES).splitlines()[-1])
            found[path.stem] = SplitAccount(**last["account"]) if "account" in last else None
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"{path}: not the journal of a conversion ({type(error).__name__}: {error}); delete the file"
            ) from None
    return found


def account_of(
    records: Sequence[dict[str, Any]], skipped: Mapping[str, tuple[int, str]], background: int | None
) -> SplitAccount:
    """Return the account of a split; InputError if all objects of its images were skipped.

    `records` are those of its images, `skipped` is what the source has besides, the class `background` is not counted.
    """
    segments = sum(category not in (VOID, background) for record in records for category in record["cat"])
    every, lost = dict(skipped), Skips()
    for reason, item in (skip for record in records for skip in record["skipped"]):
        for skips in (every, lost) if reason != FURTHER_FRAMES else (every,):
            add_skipped(skips, reason, item)
    if lost and not segments:
        reasons = "; ".join(f"{count}: {reason} (the first is {first})" for reason, (count, first) in lost.items())
        raise InputError(f"no object can be used: {reasons}")
    objects = sum(len(record["annotations"]) for record in records)
    pixels = sum(record["size"][0] * record["size"][1] for record in records)
    void = sum(record["void"] for record in records) / max(1, pixels)
    return SplitAccount(len(records), segments, objects, every, void)


class Journal:
    """Records of finished images, one per line, and the account; a journal with other classes is ignored."""

    def __init__(self, root: Path, split: str, classes: Metadata) -> None:
        self._path = root / JOURNALS / f"{split}.jsonl"
        self._header = {"journal": 3, "classes": pack_metadata(classes).hex()}

    def exists(self) -> bool:
        """Return whether the split has been converted, or its conversion been started."""
        return self._path.is_file()

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the records by id; none of a journal that is missing or of other classes."""
        records: dict[str, dict[str, Any]] = {}
        if not self.exists():
            return records
        try:
            lines = map(parse_json, self._path.read_bytes().splitlines())
            for line in lines if next(lines, None) == self._header else ():
                if "id" in line:
                    records[line["id"]] = line
        except (ValueError, TypeError):  # written in part: the process was killed, or the disk full
            pass
        return records

    @contextmanager
    def appending(self, keep: list[dict[str, Any]]) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Rewrite the journal with the records to keep, and yield a function that appends a line."""
        lines = [json.dumps(line) + "\n" for line in (self._header, *keep)]
        write_atomically(self._path, "".join(lines).encode())
        # without a buffer, which would fail again when the file is closed
        with self._path.open("ab", buffering=0) as file:

            def append(record: dict[str, Any]) -> None:
                try:
                    file.write((json.dumps(record) + "\n").encode())
                except OSError as error:
                    raise cannot_write(self._path, error) from error

            yield append
