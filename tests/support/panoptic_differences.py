"""Print the largest difference to each other tool as a Markdown table.

    PYTHONPATH=tests .venv/bin/python -m support.panoptic_differences

With SEAMSEG_PANOPTICAPI_PYTHON set (see test_parity_panoptic.py) panopticapi has its line too.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from evaluation import test_parity_ap as ap
from evaluation import test_parity_panoptic as panoptic
from evaluation import test_parity_semantic as semantic

from support.panoptic_cases import CASES, CLASSES, isthing, random_pair
from support.panoptic_files import write_pairs
from support.panoptic_parity import largest_difference, oracle_scores, our_scores
from support.peers import official_panoptic
from support.peers.hotcoco_panoptic import hotcoco_scores
from support.peers.torchmetrics_panoptic import torchmetrics_scores


def panoptic_lines(folder):
    """PQ, SQ, RQ."""
    pairs = [random_pair(seed) for seed in range(CASES)]
    files = write_pairs(folder / "pairs", pairs, isthing(CLASSES))
    ours, cases = our_scores(files, folder), f"{CASES} pairs of maps"
    yield "plain numpy", "PQ, SQ, RQ, counts", cases, largest_difference(ours, oracle_scores(pairs, isthing(CLASSES)))
    if official_panoptic.python_of_panopticapi():
        yield "panopticapi", "the same", cases, largest_difference(ours, official_panoptic.panopticapi_scores(files))
    name = f"cityscapesscripts {version('cityscapesscripts')}"
    yield name, "the same", cases, largest_difference(ours, official_panoptic.cityscapes_scores(files))
    yield f"hotcoco {version('hotcoco')}", "the same", cases, largest_difference(ours, hotcoco_scores(files))
    rng, worst = np.random.default_rng(0), 0.0
    for pair in pairs:
        one = [panoptic.total(pair, rng)]
        worst = max(worst, worst_of(panoptic.four_numbers(one), torchmetrics_scores(one, panoptic.THINGS)))
    yield f"torchmetrics {version('torchmetrics')}", "PQ, SQ, RQ, PQ†", f"{cases}, no crowd, no hole", worst


def semantic_line(folder):
    """IoU of each class and their mean."""
    args, worst = semantic.cityscapes.args, 0.0
    args.quiet, args.JSONOutput, args.evalInstLevelScore = True, False, False
    for seed in range(100):
        maps, sides = list(semantic.label_maps(seed)), ([], [])
        for i, both in enumerate(maps):
            for paths, name, ids in zip(sides, ("gt", "pred"), both):
                paths.append(str(folder / f"{name}{i}.png"))
                semantic.Image.fromarray(ids).save(paths[-1])
        theirs = semantic.cityscapes.evaluateImgLists(sides[1], sides[0], args)
        confusion = semantic.counted(maps)
        wanted = [theirs["classScores"][label.name] for label in semantic.EVALUATED]
        mine = [*confusion.iou().tolist(), confusion.miou()]
        worst = max(worst, worst_of(mine, [*wanted, theirs["averageScoreClasses"]]))
    return f"cityscapesscripts {version('cityscapesscripts')}", "IoU, mIoU", "400 maps of labels", worst


def ap_lines(folder):
    """Average precision of boxes and of masks."""
    worst = {"pycocotools": 0.0, "hotcoco": 0.0}
    for seed in range(50):
        images = ap.images_of(seed)
        scores = ap.ours(images)
        for kind, mine in (("bbox", scores.box), ("segm", scores.mask)):
            paths = ap.as_files(images, folder, kind)
            for name, by in (("pycocotools", ap.by_pycocotools), ("hotcoco", ap.by_hotcoco)):
                worst[name] = max(worst[name], worst_of(ap.numbers(mine), by(paths, kind)))
    for name, value in worst.items():
        yield f"{name} {version(name)}", "box and mask AP, six numbers each", "50 sets of 6 images", value


def worst_of(ours, theirs):
    """Largest difference; infinite if only one of two is NaN."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if not (np.isnan(a) and np.isnan(b))]
    return max((float(np.nan_to_num(abs(a - b), nan=np.inf)) for a, b in pairs), default=0.0)


if __name__ == "__main__":
    print("| tool | numbers | cases | largest difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for line in (*panoptic_lines(root), semantic_line(root), *ap_lines(root)):
            print("| {} | {} | {} | {:.1g} |".format(*line), flush=True)
