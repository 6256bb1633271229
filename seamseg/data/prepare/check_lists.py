"""Lists, detection annotations and stray files of a dataset folder."""

from __future__ import annotations

from collections import Counter
from typing import Any

from seamseg.data.folder import IMAGE_ENDINGS, DatasetFolder
from seamseg.data.prepare.problems import Problem, error, warning
from seamseg.errors import InputError
from seamseg.files import PARTIAL, read_bytes
from seamseg.limits import ANNOTATION_BYTES, parse_json

_SHOWN = 20
"""Stray files that are named one by one; of more only the number is told."""


def check_lists(folder: DatasetFolder) -> tuple[dict[str, list[str]], list[Problem]]:
    """The image ids by list, each once and known to the metadata, and what is wrong with the lists."""
    known = {image.id for image in folder.metadata.images}
    listed: dict[str, list[str]] = {}
    problems = []
    if not folder.splits:
        problems.append(error(folder.root / "lst", "no list of images: expected, for example, lst/train.txt"))
    for split in folder.splits:
        path = folder.root / "lst" / f"{split}.txt"
        try:
            text = read_bytes(path, "list of images").decode("utf-8-sig", errors="replace")
        except InputError as failure:
            problems.append(error(path, str(failure).partition(": ")[2]))
            continue
        ids = [line.strip() for line in text.splitlines() if line.strip()]
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
            text = f"{len(shared)} images are also in {owners[shared[0]]}, the first is {shared[0]!r}"
            problems.append(warning(folder.root / "lst" / f"{split}.txt", text))
    bare = sorted(known - set(owners))
    if bare and listed:
        problems.append(warning(folder.root / "lst", f"{len(bare)} images are in no list, the first is {bare[0]!r}"))
    return listed, problems


def check_coco_files(folder: DatasetFolder, listed: dict[str, list[str]]) -> list[Problem]:
    """Compare `coco/<split>.json` with lists, classes and sizes."""
    problems = []
    for split, ids in listed.items():
        path = folder.root / "coco" / f"{split}.json"
        if not path.is_file():
            problems.append(warning(path, "no such file: AP of boxes and masks cannot be scored on this split"))
            continue
        try:
            content = parse_json(read_bytes(path, "annotations", ANNOTATION_BYTES))
            problems += [
                Problem(str(path), text, is_error) for text, is_error in _check_coco(content, folder, set(ids))
            ]
        except (ValueError, KeyError, TypeError, AttributeError, InputError) as failure:
            problems.append(error(path, f"not COCO annotations ({type(failure).__name__}: {failure})"))
    return problems


def _check_coco(content: dict[str, Any], folder: DatasetFolder, ids: set[str]) -> list[tuple[str, bool]]:
    m = folder.metadata
    sizes = {image.id: image.size for image in m.images}
    found: list[tuple[str, bool]] = []
    images = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    for what, lost in (("lacks", sorted(ids - set(images))), ("has", sorted(set(images) - ids, key=str))):
        if lost:
            tail = "" if what == "lacks" else ", which the list lacks"
            found.append((f"{what} {len(lost)} images{tail}, the first is {lost[0]!r}", True))
    wrong = [i for i in ids & set(images) if images[i] != sizes[i]]
    if wrong:
        found.append((f"{len(wrong)} images have another size than in metadata.bin, the first is {min(wrong)!r}", True))
    categories = {c["id"]: c["name"] for c in content["categories"]}
    things = {k: m.categories[k] for k in range(m.num_stuff, m.num_classes)}
    if categories != things:
        found.append(("its categories are not the thing classes of metadata.bin", True))
    strange = sum(a["category_id"] not in categories for a in content["annotations"])
    stray = sum(a["image_id"] not in images for a in content["annotations"])
    if strange or stray:
        found.append((f"{strange} annotations of unknown categories and {stray} of unknown images", True))
    numbers = Counter(a["id"] for a in content["annotations"])
    if any(n > 1 for n in numbers.values()):
        found.append(("annotation ids occur twice", True))
    if 0 in numbers:
        found.append(("an annotation has id 0, which pycocotools takes for no match; count from 1", False))
    return found


def check_strays(folder: DatasetFolder, listed: dict[str, list[str]]) -> list[Problem]:
    """Files that nothing names, and what a conversion left behind that did not end."""
    known = {image.id for image in folder.metadata.images}
    problems = []
    if (folder.root / ".prepare").exists():
        problems.append(warning(folder.root / ".prepare", "a conversion did not end; run it again"))
    for name, endings in (("img", IMAGE_ENDINGS), ("msk", (".png",))):
        base = folder.root / name
        stray = []
        for path in sorted(base.rglob("*")) if base.is_dir() else []:
            if path.is_dir() or (path.name.startswith(".") and not path.name.endswith(PARTIAL)):
                continue
            if path.name.endswith(PARTIAL) or _stem(path.relative_to(base).as_posix(), endings) not in known:
                stray.append(path)
        problems += [warning(path, "belongs to no image of metadata.bin") for path in stray[:_SHOWN]]
        if len(stray) > _SHOWN:
            problems.append(warning(base, f"{len(stray) - _SHOWN} more files belong to no image of metadata.bin"))
    return problems


def _stem(name: str, endings: tuple[str, ...]) -> str:
    base, _, number = name.rpartition(".")
    if number.isdecimal():  # a further layer of a mask
        name = base
    return next((name[: -len(e)] for e in endings if name.lower().endswith(e)), name)
