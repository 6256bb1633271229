"""Ground truth in the COCO panoptic format."""

from __future__ import annotations

from pathlib import Path

from seamseg.data.folder import DatasetFolder
from seamseg.data.prepare.convert import Options
from seamseg.data.prepare.parallel import available_cores
from seamseg.evaluation.coco_writer import dataset_to_coco_panoptic


class CocoGroundTruth:
    """`OUT/coco/panoptic_<split>.json` and `OUT/coco/panoptic_<split>/<id>.png`; the photos stay in `DATA/img`."""

    def __init__(self, folder: DatasetFolder, out: Path) -> None:
        self.folder = folder
        self.out = out / "coco"

    def targets(self, split: str) -> list[Path]:
        """The JSON and the folder of PNG"""
        return [self.out / f"panoptic_{split}.json", self.out / f"panoptic_{split}"]

    def write(self, split: str, options: Options) -> None:
        """Write a split."""
        workers = options.workers or available_cores()
        dataset_to_coco_panoptic(self.folder, split, self.targets(split)[0], None, workers, options.progress)
