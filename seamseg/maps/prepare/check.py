"""Checks a dataset folder: its problems and its statistics."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seamseg.maps.folder import DatasetFolder, void_warning
from seamseg.maps.formats.metadata import ImageInfo, Metadata
from seamseg.maps.images import open_image, open_mask
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.account import JOURNALS, SplitAccount, read_accounts
from seamseg.utils.errors import InputError, counted
from seamseg.utils.files import listed_names, read_bytes
from seamseg.utils.limits import ANNOTATION_BYTES, parse_json
from seamseg.utils.parallel import parallel_map
from seamseg.utils.progress import ProgressCallback, no_progress


class Problem(NamedTuple):
    """A problem (`text`) of a `file`; an error would stop training, a warning may be intended."""

    file: str
    text: str
    is_error: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def error(file: Path | str, text: str) -> Problem:
    """Return a problem that would stop training."""
    return Problem(str(file), text, True)


def warning(file: Path | str, text: str) -> Problem:
    """Return a problem that may be intended."""
    return Problem(str(file), text, False)


def check_lists(folder: DatasetFolder) -> tuple[dict[str, list[str]], list[Problem]]:
    """Return the image ids by list, unique and present in the metadata, and the problems of the lists."""
    known = {image.id for image in folder.metadata.images}
    listed: dict[str, list[str]] = {}
    problems = []
    if not folder.splits:
        problems.append(error(folder.root / "lst", "no list of images: expected, for example, lst/train.txt"))
    for split in folder.splits:
        path = folder.root / "lst" / f"{split}.txt"
        try:
            ids = listed_names(read_bytes(path, what := "list of images"), path, what)
        except InputError as failure:
            problems.append(error(path, str(failure).partition(": ")[2]))
            continue
        if not ids:
            problems.append(error(path, "the list is empty"))
        counts = Counter(ids)
        problems += [error(path, f"image {i!r} is listed {n} times") for i, n in counts.items() if n > 1]
        problems += [error(path, f"image {i!r} is not in metadata.bin") for i in counts if i not in known]
        listed[split] = [i for i in counts if i in known]
    owners: dict[str, str] = {}
    for split, ids in listed.items():
        shared = [i for i in ids if owners.setdefault(i, split) != split]
        if shared:
            text = f"has {counted(len(shared), 'image')} of {owners[shared[0]]}, the first is {shared[0]!r}"
            problems.append(warning(folder.root / "lst" / f"{split}.txt", text))
    unlisted = sorted(known - set(owners))
    if unlisted and listed:
        problems.append(
            warning(folder.root / "lst", f"no list has {counted(len(unlisted), 'image')}, the first is {unlisted[0]!r}")
        )
    return listed, problems


def check_coco_files(folder: DatasetFolder, listed: dict[str, list[str]]) -> list[Problem]:
    """Compare `coco/<split>.json` with lists, classes and sizes."""
    problems = []
    for split, ids in listed.items():
        path = folder.root / "coco" / f"{split}.json"
        if not path.is_file():
            problems.append(warning(path, "no such file: box and mask AP cannot be computed for this split"))
            continue
        try:
            content = parse_json(read_bytes(path, "annotations", ANNOTATION_BYTES))
            problems += [error(path, text) for text in _errors_of_coco(content, folder.metadata, set(ids))]
            if any(a["id"] == 0 for a in content["annotations"]):
                text = "an annotation has id 0, which pycocotools treats as no match; start at 1"
                problems.append(warning(path, text))
        except (ValueError, KeyError, TypeError, AttributeError, InputError) as failure:
            problems.append(error(path, f"not COCO annotations ({type(failure).__name__}: {failure})"))
    return problems


def _errors_of_coco(content: dict[str, Any], m: Metadata, ids: set[str]) -> list[str]:
    sizes = {image.id: image.size for image in m.images}
    images = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    things = {k: m.categories[k] for k in range(m.num_stuff, m.num_classes)}
    categories = {c["id"]: c["name"] for c in content["categories"]}
    uses = [(a["id"], a["category_id"], a["image_id"]) for a in content["annotations"]]
    wrong = {
        "its images are not those of the list": ids ^ set(images),
        "has images of another size than metadata.bin": {i for i in ids & set(images) if images[i] != sizes[i]},
        "its categories are not the thing classes of metadata.bin": dict(things.items() ^ categories.items()),
        "has annotations of unknown categories": {number for number, category, _ in uses if category not in categories},
        "has annotations of unknown images": {number for number, _, image in uses if image not in images},
        "has annotations of one id": {
            number for number, n in Counter(number for number, _, _ in uses).items() if n > 1
        },
    }
    return [f"{text}: {len(ids)}, the first is {min(ids, key=str)!r}" for text, ids in wrong.items() if ids]


@dataclass(frozen=True)
class ImageCheck:
    """The problems and statistics of one image: pixels by class (255 void), segments and crowds by class.

    `digest` is the checksum of the image file, empty if it cannot be read.
    """

    id: str
    problems: list[Problem]
    pixels: dict[int, int] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)
    crowds: dict[int, int] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True)
class Report:
    """The statistics and problems of a data set; errors are before warnings.

    `splits` has the number of images by list, `images` the check of each in the order of the metadata. `classes` has a
    row per class: `name`, `kind`, `images`, `segments`, `crowds`, `pixels`, `share` (of the pixels that are not void).
    `sizes` has the number of images by `(height, width)`, most frequent first; `void` is the share of void pixels.
    `accounts` has what the conversion of each list used and skipped, as far as it is known.
    """

    root: Path
    problems: list[Problem]
    splits: dict[str, int]
    images: list[ImageCheck]
    classes: list[dict[str, Any]]
    sizes: list[tuple[tuple[int, int], int]]
    void: float
    accounts: dict[str, SplitAccount] = field(default_factory=dict)

    @property
    def errors(self) -> list[Problem]:
        """The problems that would stop training."""
        return [p for p in self.problems if p.is_error]

    @property
    def warnings(self) -> list[Problem]:
        """The problems that may be intended."""
        return [p for p in self.problems if not p.is_error]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "root": str(self.root),
            "ok": not self.errors,
            "errors": [{"file": p.file, "problem": p.text} for p in self.errors],
            "warnings": [{"file": p.file, "problem": p.text} for p in self.warnings],
            "splits": self.splits,
            "images": len(self.images),
            "classes": self.classes,
            "sizes": [{"height": h, "width": w, "images": n} for (h, w), n in self.sizes],
            "void": self.void,
            "conversion": {name: asdict(account) for name, account in self.accounts.items()},
        }


def check_dataset(root: str | Path, workers: int | None = None, progress: ProgressCallback = no_progress) -> Report:
    """Read every file of a data set and check consistency; InputError if it has no readable `metadata.bin`.

    Errors would stop training or invalidate scores: missing, unreadable or inconsistent files, ids without class, lists
    with unknown images. Warnings are often mistakes: classes that never occur, images without segments, images that are
    in two splits.
    """
    folder = DatasetFolder(root)
    images = folder.metadata.images
    problems: list[Problem] = []
    if not images:
        problems.append(error(folder.root / "metadata.bin", "lists no images"))
    ids = Counter(image.id for image in images)
    problems += [error(folder.root / "metadata.bin", f"lists image {i!r} {n} times") for i, n in ids.items() if n > 1]
    results = parallel_map(partial(check_image, root=folder.root), images, workers)
    checks: list[ImageCheck] = list(progress(results, len(images), "check"))
    problems += [problem for check in checks for problem in check.problems]
    listed, found = check_lists(folder)
    problems += found
    problems += check_coco_files(folder, listed)
    problems += _duplicate_images(folder, checks, listed)
    problems += _check_classes(folder, checks, listed)
    rows, void = _class_rows(folder, checks)
    if (text := void_warning(void)) is not None:
        problems.append(warning(folder.root / "msk", text))
    sizes = Counter(image.size for image in images).most_common()
    accounts: dict[str, SplitAccount] = {}
    try:
        for name, account in read_accounts(folder.root).items():
            if account is None:
                problems.append(warning(folder.root / JOURNALS, "a conversion was interrupted; run it again"))
            elif name in listed:
                accounts[name] = account
    except InputError as failure:
        problems.append(_from_exception(failure))
    ordered = sorted(problems, key=lambda p: not p.is_error)
    return Report(folder.root, ordered, {k: len(v) for k, v in listed.items()}, checks, rows, sizes, void, accounts)


def check_image(image: ImageInfo, root: Path) -> ImageCheck:
    """Check image and mask of one image, in a worker process."""
    problems: list[Problem] = []
    digest = ""
    folder, stated = OneImageFolder(root, image), f"{image.size[1]} x {image.size[0]}"
    try:
        photo = folder.image_path(image.id)
        width, height = open_image(photo).size
        digest = hashlib.blake2b(read_bytes(photo, "image"), digest_size=16).hexdigest()
        if (height, width) != image.size:
            problems.append(error(photo, f"{width} x {height} pixels (width x height), but metadata.bin has {stated}"))
    except InputError as failure:
        problems.append(_from_exception(failure))
    try:
        paths = folder.mask_paths(image.id)
        layers = [open_mask(path) for path in paths]
    except InputError as failure:
        return ImageCheck(image.id, [*problems, _from_exception(failure)], digest=digest)
    for path, layer in zip(paths, layers):
        if layer.shape != image.size:
            shown = f"{layer.shape[1]} x {layer.shape[0]} pixels (width x height)"
            problems.append(error(path, f"the mask is {shown}, but metadata.bin has {stated}"))
    counts = np.bincount(np.concatenate([layer.ravel() for layer in layers]))
    problems += _check_ids(image, counts, paths[0])
    counts = counts[: len(image.cat)]
    if len({layer.shape for layer in layers}) == 1:
        counts[0] = (~np.any(layers, axis=0)).sum()  # further layers are 0 where the first is not
    pixels: Counter[int] = Counter()
    segments: Counter[int] = Counter()
    crowds: Counter[int] = Counter()
    for number in np.flatnonzero(counts).tolist():
        category = image.cat[number]
        pixels[category] += int(counts[number])
        if category != VOID:
            segments[category] += 1
            crowds[category] += image.iscrowd[number]
    return ImageCheck(image.id, problems, dict(pixels), dict(segments), dict(+crowds), digest)


def _check_ids(image: ImageInfo, counts: np.ndarray, path: Path) -> list[Problem]:
    present = np.flatnonzero(counts)
    beyond = present[present >= len(image.cat)].tolist()
    problems = []
    if beyond:
        more = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        problems.append(
            error(path, f"instance id {beyond[0]}{more} without class: metadata.bin has ids 0 to {len(image.cat) - 1}")
        )
    unused = [k for k in range(1, len(image.cat)) if k >= len(counts) or not counts[k]]
    if unused:
        problems.append(warning(path, f"{len(unused)} of {len(image.cat) - 1} ids of metadata.bin have no pixel"))
    if not any(image.cat[k] != VOID for k in present.tolist() if k < len(image.cat)):
        problems.append(warning(path, "nothing but void"))
    return problems


class OneImageFolder(DatasetFolder):
    """A dataset folder with the metadata of one image, whose `metadata.bin` is not read."""

    def __init__(self, root: Path, image: ImageInfo) -> None:
        self.root = root
        self._image = image

    def info(self, image_id: str) -> ImageInfo:
        """Return the metadata of the image."""
        return self._image


def _from_exception(failure: InputError) -> Problem:
    path, _, text = str(failure).partition(": ")
    return error(path, text)


def _duplicate_images(
    folder: DatasetFolder, checks: Sequence[ImageCheck], listed: dict[str, list[str]]
) -> list[Problem]:
    splits = {i: name for name, ids in listed.items() for i in ids}
    first: dict[str, ImageCheck] = {}
    problems = []
    for check in checks:
        if not check.digest or check.id not in splits:
            continue
        other = first.setdefault(check.digest, check)
        if other is not check and splits[other.id] != splits[check.id]:
            text = f"{other.id!r} ({splits[other.id]}) and {check.id!r} ({splits[check.id]}) are the same image"
            problems.append(warning(folder.root / "img", text))
    return problems


def _check_classes(folder: DatasetFolder, checks: Sequence[ImageCheck], listed: dict[str, list[str]]) -> list[Problem]:
    m = folder.metadata
    used = {check.id: set(check.segments) for check in checks}
    by_split = {name: set().union(*(used.get(i, set()) for i in ids)) for name, ids in listed.items()}
    everywhere: set[int] = set().union(*used.values()) if used else set()
    path = folder.root / "metadata.bin"
    absent = [repr(name) for k, name in enumerate(m.categories) if k not in everywhere]
    crowds = [warning(path, text) for text in crowd_warnings(m, m.images)]
    problems = [warning(path, f"{len(absent)} classes never occur: {', '.join(absent)}")] if len(absent) > 1 else []
    if len(absent) == 1:
        problems = [warning(path, f"class {absent[0]} never occurs")]
    training = [name for name in by_split if "train" in name]
    if training:
        learnt: set[int] = set().union(*(by_split[name] for name in training))
        for name in sorted(set(by_split) - set(training)):
            problems += [
                warning(path, f"class {m.categories[k]!r} occurs in {name}, but not in {' or '.join(training)}")
                for k in sorted(by_split[name] - learnt)
            ]
    twice = [name for name, n in Counter(m.categories).items() if n > 1]
    return problems + crowds + [error(path, f"two classes have the name {name!r}") for name in twice]


def crowd_warnings(classes: Metadata, images: Sequence[ImageInfo]) -> list[str]:
    """Return a warning if all objects of some thing classes are crowds."""
    pairs = Counter((c, crowd) for image in images for c, crowd in zip(image.cat, image.iscrowd))
    names = [repr(classes.categories[c]) for c, crowd in pairs if classes.is_thing(c) and crowd and not pairs[c, 0]]
    return [f"all objects of {', '.join(sorted(names))} are crowds, which training ignores"] if names else []


def _class_rows(folder: DatasetFolder, checks: Sequence[ImageCheck]) -> tuple[list[dict[str, Any]], float]:
    m = folder.metadata
    pixels = sum((Counter(c.pixels) for c in checks), Counter())
    known = sum(n for category, n in pixels.items() if category != VOID)
    rows = [
        {
            "name": name,
            "kind": "thing" if m.is_thing(k) else "stuff",
            "images": sum(k in c.segments for c in checks),
            "segments": sum(c.segments.get(k, 0) for c in checks),
            "crowds": sum(c.crowds.get(k, 0) for c in checks),
            "pixels": pixels[k],
            "share": pixels[k] / known if known else 0.0,
        }
        for k, name in enumerate(m.categories)
    ]
    total = known + pixels[VOID]
    return rows, pixels[VOID] / total if total else 0.0
