"""The official tools of Cityscapes (PyPI: cityscapesscripts) called in this process.

They have global options and write to the working directory: each call has a folder of its own.
"""

import contextlib
import copy
import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@contextlib.contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    patch = pytest.MonkeyPatch()
    # version 2.3 calls a function that numpy 2.4 no longer has
    patch.setattr(np, "in1d", np.isin, raising=False)
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.chdir(before)
        patch.undo()


def _tool(name: str) -> Any:
    return pytest.importorskip(f"cityscapesscripts.evaluation.{name}")


def _pairs(module: Any, args: Any, gt: Path, ending: str, swapped: bool) -> tuple[list[str], list[str]]:
    truth = sorted(str(p) for p in gt.glob(f"*/*{ending}"))
    return [module.getPrediction(*((t, args) if swapped else (args, t))) for t in truth], truth


def pixel_level(gt: Path, results: Path, work: Path) -> dict[str, Any]:
    tool = _tool("evalPixelLevelSemanticLabeling")
    args = copy.copy(tool.args)
    args.predictionPath, args.predictionWalk, args.JSONOutput, args.quiet = str(results), None, False, True
    with _working_directory(work):
        predicted, truth = _pairs(tool, args, gt, "_gtFine_labelIds.png", swapped=False)
        return tool.evaluateImgLists(predicted, truth, args)


def instance_level(gt: Path, results: Path, work: Path) -> dict[str, Any]:
    """Scores of text files and masks."""
    tool = _tool("evalInstanceLevelSemanticLabeling")
    args = copy.copy(tool.args)
    args.predictionPath, args.predictionWalk, args.JSONOutput, args.quiet = str(results), None, False, True
    args.gtInstancesFile = str(work / "gtInstances.json")
    with _working_directory(work), pytest.MonkeyPatch.context() as patch:
        # it writes all matches to a JSON, which fails for numpy integers
        patch.setattr(tool, "writeDict2JSON", lambda content, path: None)
        predicted, truth = _pairs(tool, args, gt, "_gtFine_instanceIds.png", swapped=True)
        return tool.evaluateImgLists(predicted, truth, args)


def panoptic_ground_truth(gt: Path, work: Path) -> tuple[Path, Path]:
    """Convert a split by createPanopticImgs; returns JSON and folder."""
    tool = pytest.importorskip("cityscapesscripts.preparation.createPanopticImgs")
    with _working_directory(work):
        tool.convert2panoptic(str(gt.parent), str(work), False, [gt.name])
    return work / f"cityscapes_panoptic_{gt.name}.json", work / f"cityscapes_panoptic_{gt.name}"


def panoptic(gt: Path, pred_json: Path, work: Path, made: tuple[Path, Path] | None = None) -> dict[str, Any]:
    """Scores of a COCO panoptic JSON; converts the ground truth unless `made` is given."""
    tool = _tool("evalPanopticSemanticLabeling")
    gt_json, gt_folder = panoptic_ground_truth(gt, work) if made is None else made
    truth, predicted = (json.loads(path.read_text()) for path in (gt_json, pred_json))
    categories = {c["id"]: c for c in truth["categories"]}
    by_id = {a["image_id"]: a for a in predicted["annotations"]}
    pairs = [(a, by_id[a["image_id"]]) for a in truth["annotations"]]
    with _working_directory(work):
        # without its process pool: forking a process with threads may hang
        counts = tool.pq_compute_single_core(0, pairs, str(gt_folder), str(pred_json.with_suffix("")), categories)
        return tool.average_pq(counts, categories)
