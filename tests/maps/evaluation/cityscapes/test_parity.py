"""Equal to the official tools on made-up frames (skipped where cityscapesscripts is not installed)."""

import math

import pytest
from support import cityscapes_official as official
from support.cityscapes_scenes import make_tree

from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes
from seamseg.maps.evaluation.record import MapFiles

pytest.importorskip("cityscapesscripts")

CASES = {
    "four frames": (0, 4, False),
    "other": (1, 5, False),
    "one frame": (2, 1, False),
    "nothing found": (3, 2, True),
}
AP_NAMES = {"AP": ("allAp", "ap"), "AP50": ("allAp50%", "ap50%")}


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def scored(request, tmp_path_factory):
    seed, frames, empty = CASES[request.param]
    root = tmp_path_factory.mktemp("tree")
    tree = make_tree(root, seed, frames, empty=empty)
    return tree, evaluate_cityscapes(tree.gt, tree.results, workers=2), root / "work"


def close(ours, theirs):
    return ours == pytest.approx(theirs, abs=1e-12, rel=1e-12, nan_ok=True)


def test_pixel_level(scored):
    tree, scores, work = scored
    theirs = official.pixel_level(tree.gt, tree.results / "pixel", work)
    ours = scores.pixel
    assert [len(entries) for entries in ours.groups.values()] == [19, 7]
    for kind, entries in zip(("class", "category"), ours.groups.values()):
        for name, entry in entries.items():
            assert close(entry["IoU"], theirs[f"{kind}Scores"][name]), name
            assert close(entry["iIoU"], theirs[f"{kind}InstScores"][name]), name
    for key, name in (
        ("IoU", "Classes"), ("iIoU", "InstClasses"), ("category_IoU", "Categories"), ("category_iIoU", "InstCategories")
    ):  # fmt: skip
        assert close(ours.means[key], theirs[f"averageScore{name}"])


def test_instance_level(scored):
    tree, scores, work = scored
    theirs = official.instance_level(tree.gt, tree.results / "instance", work)["averages"]
    classes = scores.instance.groups["classes"]
    assert len(classes) == 8
    for key, (mean, name) in AP_NAMES.items():
        assert close(scores.instance.means[key], theirs[mean])
        for label, entry in classes.items():
            assert close(entry[key], theirs["classes"][label][name]), label


def test_panoptic(scored):
    tree, scores, work = scored
    theirs = official.panoptic(tree.gt, tree.results / "panoptic.json", work)
    ours = scores.panoptic
    for suffix, name in (("", "All"), ("_things", "Things"), ("_stuff", "Stuff")):
        for key in ("PQ", "SQ", "RQ"):
            assert close(getattr(ours, key + suffix), theirs[name][key.lower()])
    for c in ours.per_class:
        expected = theirs["per_class"][c.info.id]
        if c.TP + c.FP + c.FN:
            assert close([c.PQ, c.SQ, c.RQ], [expected["pq"], expected["sq"], expected["rq"]]), c.info.name
        else:
            # they write 0, but leave the class out of the mean as we do
            assert expected == {"pq": 0.0, "sq": 0.0, "rq": 0.0}
            assert math.isnan(c.PQ)


def test_raw_ground_truth_equals_the_official_conversion(scored):
    tree, scores, work = scored
    gt_json, gt_folder = official.panoptic_ground_truth(tree.gt, work)
    from_files = evaluate_panoptic_json(MapFiles(gt_json, gt_folder), tree.results / "panoptic.json")
    assert from_files.to_json() == scores.panoptic.to_json()
