"""Compare the Cityscapes protocol with the official tools (cityscapesscripts of PyPI), from files to scores.

    pip install cityscapesscripts
    python benchmarks/cityscapes.py
    python benchmarks/cityscapes.py instance --frames 5 --workers 2

Synthetic frames of 2048 x 1024 with 30 instances, and results for them. The official side is what its tools call in one
process, as the wheel has them: the pixel-level tool without its optional Cython extension. The instance-level tool
finds the true instances anew each time, which it would otherwise keep in a file, and does not write its matches. The
panoptic tool has its ground truth made beforehand (createPanopticImgs), which ours does not need.
`difference` is that of the scores. Run it from the root of the repository: the oracles are those of the tests.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import Case, options, report
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

from support import cityscapes_official as official
from support.cityscapes_scenes import THINGS, labels_of, save, write_panoptic

from seamseg.evaluation.cityscapes import evaluate_cityscapes

HEIGHT, WIDTH, INSTANCES = 1024, 2048, 30


def scene(rng: np.random.Generator) -> np.ndarray:
    """Draw bands of stuff with discs of things over them, a group, and the ego vehicle."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    ids = np.array([23, 21, 11, 8, 7])[y * 5 // HEIGHT]
    for number in range(INSTANCES):
        inside = np.hypot(y - rng.uniform(0, HEIGHT), x - rng.uniform(0, WIDTH)) < np.exp(rng.normal(3.7, 0.7))
        ids[inside] = rng.choice(THINGS[:3]) * 1000 + number
    ids[400:460, 900:1100] = 24
    ids[-60:] = 1
    return ids


def make(root: Path, frames: int) -> None:
    """Write the ground truth, and results that are the same moved by a few pixels."""
    rng = np.random.default_rng(0)
    annotations = []
    for number in range(frames):
        stem = f"ulm_{number:06d}_000019"
        truth = scene(rng)
        guess = np.roll(truth, (4, 6), (0, 1))
        save(root / f"gtFine/val/ulm/{stem}_gtFine_instanceIds.png", truth.astype(np.uint16))
        save(root / f"gtFine/val/ulm/{stem}_gtFine_labelIds.png", labels_of(truth).astype(np.uint8))
        save(root / f"all/pixel/{stem}.png", labels_of(guess).astype(np.uint8))
        lines = []
        for value in np.unique(guess[guess >= 1000]).tolist():
            save(root / f"all/instance/masks/{stem}_{value}.png", np.where(guess == value, np.uint8(255), np.uint8(0)))
            lines.append(f"masks/{stem}_{value}.png {value // 1000} {rng.uniform():.4f}\n")
        (root / f"all/instance/{stem}.txt").write_text("".join(lines))
        annotations.append(write_panoptic(root / "all/panoptic", stem, guess))
    (root / "all/panoptic.json").write_text(json.dumps({"annotations": annotations}))
    # a folder of results for each task alone
    for part in ("pixel", "instance", "panoptic"):
        shutil.copytree(root / "all" / part, root / part / part)
    shutil.copy(root / "all/panoptic.json", root / "panoptic/panoptic.json")


def pixel(root: Path, workers: int) -> Case:
    """Compare IoU and iIoU of classes and categories."""
    gt, results, keys = root / "gtFine/val", root / "pixel", ("Classes", "InstClasses", "Categories", "InstCategories")

    def ours() -> Tensor:
        scores = evaluate_cityscapes(gt, results, workers).pixel
        assert scores is not None
        return torch.tensor([scores.IoU, scores.iIoU, scores.category_IoU, scores.category_iIoU], dtype=torch.float64)

    def theirs() -> Tensor:
        found = official.pixel_level(gt, results, root / "work")
        return torch.tensor([found[f"averageScore{key}"] for key in keys], dtype=torch.float64)

    return Case(f"pixel level, {workers} threads", "cityscapesscripts", ours, theirs)


def instance(root: Path, workers: int) -> Case:
    """Compare the AP of masks."""
    gt, results = root / "gtFine/val", root / "instance"

    def ours() -> Tensor:
        scores = evaluate_cityscapes(gt, results, workers).instance
        assert scores is not None
        return torch.tensor([scores.AP, scores.AP50], dtype=torch.float64)

    def theirs() -> Tensor:
        found = official.instance_level(gt, results / "instance", root / "work")["averages"]
        return torch.tensor([found["allAp"], found["allAp50%"]], dtype=torch.float64)

    return Case(f"instance level, {workers} threads", "cityscapesscripts", ours, theirs)


def panoptic(root: Path, workers: int) -> Case:
    """Compare PQ from the raw ground truth."""
    gt, results = root / "gtFine/val", root / "panoptic"
    made = official.panoptic_ground_truth(gt, root / "work")

    def ours() -> Tensor:
        scores = evaluate_cityscapes(gt, results, workers).panoptic
        assert scores is not None
        return torch.tensor([scores.PQ, scores.SQ, scores.RQ], dtype=torch.float64)

    def theirs() -> Tensor:
        found = official.panoptic(gt, results / "panoptic.json", root / "work", made)["All"]
        return torch.tensor([found["pq"], found["sq"], found["rq"]], dtype=torch.float64)

    return Case(f"panoptic, {workers} threads", "cityscapesscripts, one process", ours, theirs)


def cases(root: Path, workers: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    for case in (pixel, instance, panoptic):
        yield case.__name__, partial(case, root, workers)


if __name__ == "__main__":
    if importlib.util.find_spec("cityscapesscripts") is None:
        raise SystemExit("cityscapes.py: the peer is not installed: pip install cityscapesscripts")
    parser = options(__doc__)
    parser.add_argument("--frames", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="threads of ours (default: %(default)s)")
    parser.set_defaults(rounds=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seamseg-cityscapes-") as folder:
        make(Path(folder), arguments.frames)
        report(cases(Path(folder), arguments.workers), arguments)
