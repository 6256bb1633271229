"""The journal of a conversion, and its account: what it used of each split, and what it skipped and why.

The accounts of a dataset folder are in its `prepared.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seamseg.maps.formats.metadata import Metadata, pack_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.utils.errors import InputError, counted, one_line
from seamseg.utils.files import cannot_write, read_bytes, write_atomically, write_json
from seamseg.utils.limits import ANNOTATION_BYTES, parse_json

FILE = "prepared.json"

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

    `frames` has by id of an image the `stamp` of its sources and of the options, reason and name of each of its
    `skipped` objects, and its `void` pixels. `void` is the share of the pixels.
    """

    images: int = 0
    segments: int = 0
    objects: int = 0
    skipped: Skips = field(default_factory=dict)
    frames: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)
    void: float = 0.0

    def lines(self, split: str) -> list[str]:
        """Return the account as lines of text."""
        used = f"{split}: used {counted(self.images, 'image')}, {counted(self.segments, 'segment')}"
        skipped = [
            one_line(f"{split}: skipped {count}: {reason} ({'the first is ' if count > 1 else ''}{first})")
            for reason, (count, first) in self.skipped.items()
        ]
        return [f"{used}, of which {counted(self.objects, 'object')}", *skipped]


def read_accounts(root: Path) -> dict[str, SplitAccount]:
    """Return the accounts of a dataset folder by split; empty if it has none, InputError for other content."""
    path = root / FILE
    if not path.is_file():
        return {}
    try:
        splits = parse_json(read_bytes(path, "account of the conversion", ANNOTATION_BYTES))["splits"]
        return {str(name): _account(split) for name, split in splits.items()}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path}: not the account of a conversion ({type(error).__name__}: {error}); delete the file"
        ) from None


def _account(split: dict[str, Any]) -> SplitAccount:
    skipped = {str(reason): (int(count), str(first)) for reason, (count, first) in split["skipped"].items()}
    frames = {
        str(name): {
            "stamp": str(frame["stamp"]),
            "skipped": [(str(why), str(item)) for why, item in frame["skipped"]],
            "void": int(frame["void"]),
        }
        for name, frame in split["frames"].items()
    }
    return SplitAccount(
        int(split["images"]), int(split["segments"]), int(split["objects"]), skipped, frames, float(split["void"])
    )


def write_accounts(root: Path, accounts: dict[str, SplitAccount]) -> None:
    """Write the accounts of a dataset folder."""
    write_json(root / FILE, {"splits": {name: asdict(account) for name, account in accounts.items()}})


def account_of(
    records: Sequence[dict[str, Any]], skipped: Mapping[str, tuple[int, str]], background: int | None
) -> SplitAccount:
    """Return the account of a split; InputError if all objects of its images were skipped.

    `records` are those of its images, `skipped` is what the source has besides, the class `background` is not counted.
    """
    frames = {record["id"]: {key: record[key] for key in ("stamp", "skipped", "void")} for record in records}
    segments = sum(category not in (VOID, background) for record in records for category in record["cat"])
    lost = {reason: skips for reason, skips in all_skipped({}, frames).items() if reason != FURTHER_FRAMES}
    if lost and not segments:
        reasons = "; ".join(f"{count}: {reason} (the first is {first})" for reason, (count, first) in lost.items())
        raise InputError(f"no object can be used: {reasons}")
    objects = sum(len(record["annotations"]) for record in records)
    pixels = sum(record["size"][0] * record["size"][1] for record in records)
    void = sum(record["void"] for record in records) / max(1, pixels)
    return SplitAccount(len(records), segments, objects, all_skipped(skipped, frames), frames, void)


def all_skipped(skipped: Mapping[str, tuple[int, str]], frames: Mapping[str, dict[str, Any]]) -> Skips:
    """Return what was skipped besides the images of a split, and the objects on these (`frames` of the account)."""
    found = dict(skipped)
    for frame in frames.values():
        for reason, item in frame["skipped"]:
            add_skipped(found, reason, item)
    return found


class Journal:
    """Records of finished images, one per line; a journal with other classes is ignored."""

    def __init__(self, path: Path, classes: Metadata) -> None:
        self._path = path
        self._header = {"journal": 2, "classes": pack_metadata(classes).hex()}

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the records by id; none of a journal that is missing or of other classes."""
        if not self._path.is_file():
            return {}
        values = []
        for line in self._path.read_bytes().splitlines():
            try:
                values.append(parse_json(line))
            except ValueError:  # written in part: the process was killed, or the disk full
                break
        if not values or values[0] != self._header:
            return {}
        return {record["id"]: record for record in values[1:]}

    @contextmanager
    def appending(self, keep: list[dict[str, Any]]) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Rewrite the journal with the records to keep, and yield a function that appends one."""
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
