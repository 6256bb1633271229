"""`seamseg evaluate --protocol cityscapes`: equal to the official tools on made-up frames (skipped where
cityscapesscripts is not installed), tables, JSON, missing parts, one-line errors."""

import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image
from support import cityscapes_official as official
from support.cityscapes_scenes import make_tree, save

from seamseg.cli.main import main
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


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path, 0, frames=2)


def evaluate(tree, *more, pred=None):
    pred = tree.results if pred is None else pred
    return main(["evaluate", "--protocol", "cityscapes", "--gt", str(tree.gt), "--pred", str(pred), "--quiet", *more])


def test_tables_and_json(tree, tmp_path, capsys):
    assert evaluate(tree, "--json", str(tmp_path / "out.json")) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for word in ("pixel level", "instance level", "panoptic", "19 classes", "7 categories", "AP50", "2 frames"):
        assert word in shown.out
    assert "not found" not in shown.out
    content = json.loads((tmp_path / "out.json").read_text())
    scores = evaluate_cityscapes(tree.gt, tree.results)
    assert content == scores.to_json()
    assert content["pixel"]["IoU"] == scores.pixel.means["IoU"]
    assert content["pixel"]["n_images"] == content["instance"]["n_images"] == 2
    assert f"{100 * scores.pixel.means['IoU']:.2f}" in shown.out
    assert f"{100 * scores.instance.means['AP']:.2f}" in shown.out
    assert f"{100 * scores.panoptic.PQ:.2f}" in shown.out


def test_what_changes_nothing(tree, tmp_path):
    """Other frames and hidden ones, threads, palettes, image ids that are paths, another JSON, the folder above."""
    before = evaluate_cityscapes(tree.gt, tree.results).to_json()
    save(tree.results / "pixel" / "ulm_000000_000019.png", np.zeros((2, 2), np.uint8))
    for folder in (tree.gt, *tree.gt.iterdir(), tree.results / "pixel", tree.results / "instance"):
        shutil.copytree(folder, folder / ".ipynb_checkpoints")
    (tree.results / "._panoptic.json").touch()
    assert evaluate_cityscapes(tree.gt, tree.results, workers=3).to_json() == before
    for path in (tree.results / "pixel").glob("a*.png"):
        image = Image.open(path)
        image.putpalette([200, 0, 7] * 256)
        image.save(path)
    path = tree.results / "panoptic.json"
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["image_id"] = f"aachen/{annotation['image_id']}_leftImg8bit"
    path.write_text(json.dumps(content))
    assert evaluate_cityscapes(tree.gt, tree.results).to_json() == before
    shutil.copytree(tree.results, tmp_path / "out" / "cityscapes")
    # `seamseg predict --format coco,cityscapes` has a panoptic.json beside it, too
    (tmp_path / "out" / "panoptic.json").write_text("{}")
    assert evaluate_cityscapes(tree.gt, tmp_path / "out").to_json() == before


def _first(tree, pattern):
    return sorted(tree.results.glob(pattern))[0]


def _write(text):
    return lambda tree: _first(tree, "instance/*.txt").write_text(text)


def _pixels(values):
    return lambda tree: save(_first(tree, "pixel/*.png"), values)


def _json(change):
    def apply(tree):
        path = tree.results / "panoptic.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


FAILURES = {
    "no prediction": (lambda tree: _first(tree, "pixel/*.png").unlink(), "no prediction aachen_000000_000000*.png"),
    "two predictions": (
        lambda tree: save(tree.results / "pixel/x/aachen_000000_000000.png", np.zeros((96, 128), np.uint8)),
        "a second prediction for aachen_000000_000000",
    ),
    "no annotation": (_json(lambda c: c["annotations"].pop()), "no annotation with image_id bad-honnef"),
    "size": (_pixels(np.zeros((3, 4), np.uint8)), "is 4 x 3 pixels (width x height), its ground truth 128 x 96"),
    "label": (_pixels(np.full((96, 128), 34, np.uint8)), "34 is not a Cityscapes label id; predictions have"),
    "size of labels": (
        lambda tree: save(next(tree.gt.glob("*/*0_gtFine_labelIds.png")), np.zeros((200, 4), np.uint8)),
        "_gtFine_labelIds.png: differs in size from aachen_000000_000000_gtFine_instanceIds.png",
    ),
    "no number": (_write("masks/a.png car 0.5\n"), "line 1: 'car' is not a valid label id"),
    "no score": (_write("masks/a.png 26 nan\n"), "'nan' is not a valid confidence"),
    "no such label": (_write("masks/a.png 34 0.5\n"), "34 is not a Cityscapes label id"),
    "outside": (_write("../../a.png 26 0.5\n"), "must be a relative path inside"),
    "no mask": (_write("masks/a.png 26 0.5\n"), "masks/a.png: no such mask"),
    "mask size": (
        lambda tree: (_write("a.png 26 0.5")(tree), save(tree.results / "instance/a.png", np.ones((2, 2), np.uint8))),
        "a.png: the prediction is 2 x 2",
    ),
    "category": (
        _json(lambda content: content["annotations"][0]["segments_info"][0].update(category_id=0)),
        "category_id 0, which",
    ),
    "nothing": (lambda tree: shutil.rmtree(tree.results) or tree.results.mkdir(), "contains no results; expected"),
    "no folder": (lambda tree: shutil.rmtree(tree.results), "no such folder"),
    "no ground truth": (lambda tree: [p.unlink() for p in tree.gt.glob("*/*")], "no annotation CITY/"),
    "unknown instance": (
        lambda tree: save(next(tree.gt.glob("*/*0_gtFine_instanceIds.png")), np.full((96, 128), 40001, np.uint16)),
        "40001 is not a Cityscapes instance id",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_are_one_line(tree, capsys, name):
    spoil, words = FAILURES[name]
    spoil(tree)
    assert evaluate(tree) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error


def test_without_the_official_tools(tree, capsys, monkeypatch):
    """The panoptic level needs none of them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert evaluate(tree) == 2
    said = "the pixel and instance level of Cityscapes: needs cityscapesscripts, which is not installed; "
    assert capsys.readouterr().err == f"seamseg evaluate: {said}pip install 'seamseg[cityscapes]'\n"
    for part in ("pixel", "instance"):
        shutil.rmtree(tree.results / part)
    assert evaluate(tree) == 0
    assert "not evaluated, because not found: pixel/, instance/" in capsys.readouterr().out


def test_predictions_that_are_all_ignored(tree):
    """On which cityscapesscripts itself fails: AP is 0."""
    for ids in tree.gt.glob("*/*_gtFine_instanceIds.png"):
        values = np.zeros((96, 128), np.uint16)
        values[:20, :20] = 26001
        save(ids, values)
    for number, path in enumerate(sorted((tree.results / "instance").glob("*.txt"))):
        mask = np.zeros((96, 128), np.uint8)
        mask[60:, 60:] = 255
        save(tree.results / "instance" / f"mask{number}.png", mask)
        path.write_text(f"mask{number}.png 26 0.5\n")
    assert evaluate_cityscapes(tree.gt, tree.results).instance.means["AP"] == 0


def test_the_split_must_be_named(tree, capsys):
    words = ["evaluate", "--protocol", "cityscapes", "--gt", str(tree.gt.parent), "--pred", str(tree.results)]
    assert main(words) == 2
    assert f"did you mean {tree.gt}?" in capsys.readouterr().err
