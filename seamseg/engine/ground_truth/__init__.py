"""The ground truth of a dataset folder in the formats of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from seamseg.data.folder import DatasetFolder
from seamseg.data.prepare.convert import DEFAULTS, Options
from seamseg.engine.ground_truth.cityscapes import CityscapesGroundTruth
from seamseg.engine.ground_truth.coco import CocoGroundTruth
from seamseg.engine.ground_truth.vistas import VistasGroundTruth
from seamseg.errors import InputError

__all__ = ["FORMATS", "export_dataset"]


class GroundTruthFormat(Protocol):
    """One format of a dataset folder."""

    def targets(self, split: str) -> list[Path]:
        """The files and folders that belong to a split alone."""

    def write(self, split: str, options: Options) -> None:
        """Write a split."""


FORMATS: dict[str, Callable[[DatasetFolder, Path], GroundTruthFormat]] = {
    "coco": CocoGroundTruth,
    "cityscapes": CityscapesGroundTruth,
    "vistas": VistasGroundTruth,
}


def export_dataset(
    data: str | Path,
    out: str | Path,
    splits: Sequence[str] = (),
    formats: Sequence[str] = ("coco",),
    options: Options = DEFAULTS,
    force: bool = False,
) -> dict[str, int]:
    """Write the ground truth of splits of a dataset folder in formats that other programs, and `prepare`, read.

    Parameters
    ----------
    data : dataset folder
    out : a folder for each format is made in it
    splits : names of lists; all if none
    formats : of :data:`FORMATS`
    options : how; `workers` are threads
    force : write over a split that is there

    Returns
    -------
    images by split

    Raises
    ------
    InputError
        if a split or format is unknown or there already, or if a format cannot hold the data
    """
    folder = DatasetFolder(data)
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise InputError(f"--format {','.join(formats)}: choose among {', '.join(FORMATS)}, with commas between")
    names = list(dict.fromkeys(splits or folder.splits))
    if not names:
        raise InputError(f"{folder.root / 'lst'}: no list of images, nothing to export")
    counts = {name: len(folder.split(name)) for name in names}
    writers = [FORMATS[name](folder, Path(out)) for name in dict.fromkeys(formats)]
    _refuse_sharing(writers, names)
    there = [t for w in writers for name in names for t in w.targets(name) if _has_content(t)]
    if there and not force:
        raise InputError(f"{there[0]}: there already; choose another folder, or write over it with --force")
    for writer in writers:
        for name in names:
            writer.write(name, options)
    return counts


def _refuse_sharing(writers: Sequence[GroundTruthFormat], splits: Sequence[str]) -> None:
    owners: dict[Path, str] = {}
    for writer in writers:
        for split in splits:
            for target in writer.targets(split):
                owner = owners.setdefault(target, split)
                if owner != split:
                    raise InputError(f"{target}: the splits {owner} and {split} would both be written there")


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()
