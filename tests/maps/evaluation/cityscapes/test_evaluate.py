"""`seamseg evaluate --protocol cityscapes`: equal to the official tools on made-up frames (skipped where
cityscapesscripts is not installed), tables, JSON, missing parts, one-line errors."""

import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from support import cityscapes_official as official

from seamseg.cli.main import main
from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.formats.cityscapes.labels import EVALUATED
from seamseg.maps.formats.id_png import write_id_png

pytest.importorskip("cityscapesscripts")

VOID = (0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18)
STUFF = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23)
THINGS = (24, 25, 26, 27, 28, 31, 32, 33)
IGNORED_THINGS = (29, 30)


class Tree(NamedTuple):
    gt: Path
    results: Path


def make_tree(root: Path, seed: int, frames: int = 4, empty: bool = False) -> Tree:
    """Write frames of random scenes and results for them; `empty` ones predict nothing at all."""
    rng = np.random.default_rng(seed)
    tree = Tree(root / "gtFine" / "val", root / "results")
    annotations = []
    for number in range(frames):
        city = ("aachen", "bad-honnef")[number % 2]
        stem = f"{city}_{seed:06d}_{number:06d}"
        instances = scene(rng, 96, 128)
        labels = labels_of(instances)
        (tree.gt / city).mkdir(parents=True, exist_ok=True)
        save(tree.gt / city / f"{stem}_gtFine_labelIds.png", labels.astype(np.uint8))
        save(tree.gt / city / f"{stem}_gtFine_instanceIds.png", instances.astype(np.uint16))
        guess = np.zeros_like(instances) if empty else disturbed(rng, instances)
        save(tree.results / "pixel" / f"{stem}_pred.png", labels_of(guess).astype(np.uint8))
        write_instances(rng, tree.results / "instance", stem, guess, instances)
        annotations.append(write_panoptic(tree.results / "panoptic", stem, guess))
    content = {"annotations": annotations}
    (tree.results / "panoptic.json").write_text(json.dumps(content))
    return tree


def scene(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A map of `instanceIds`: stuff, void, instances of all sizes, groups, caravans."""
    ids = np.zeros((height, width), np.int64)
    for label in rng.choice(STUFF, 7):
        blob(rng, ids, 40)[:] = label
    for label in rng.choice(VOID, 4):
        blob(rng, ids, 20)[:] = label
    # few classes, to test absent classes, too
    for label in rng.choice(THINGS, 3, replace=False):
        for count in range(int(rng.integers(1, 6))):
            # some are smaller than 100 pixels
            blob(rng, ids, int(rng.choice([6, 12, 30, 40])))[:] = label * 1000 + count
        if rng.random() < 0.6:
            blob(rng, ids, int(rng.choice([7, 30])))[:] = label
    for label in rng.choice(IGNORED_THINGS, 1):
        blob(rng, ids, 25)[:] = label * 1000
        blob(rng, ids, 25)[:] = label
    ids[-6:] = 1
    ids[:8, :8] = 11
    return ids


def blob(rng: np.random.Generator, ids: np.ndarray, size: int) -> np.ndarray:
    """A random rectangle of a map, about `size` long."""
    y, x = (int(rng.integers(0, n)) for n in ids.shape)
    h, w = (int(n) for n in rng.integers(size // 2, size + 1, 2))
    return ids[y : y + h, x : x + w]


def disturbed(rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    out = np.roll(ids, tuple(rng.integers(-2, 3, 2).tolist()), (0, 1))
    for value in np.unique(out):
        draw = rng.random()
        if draw < 0.15:
            out[out == value] = rng.choice(THINGS) * 1000 + 90
        elif draw < 0.25:
            out[out == value] = 0
    for _ in range(4):
        blob(rng, out, 14)[:] = rng.choice([*STUFF, 26001, 24002, 29, 30001])
    return out


def labels_of(ids: np.ndarray) -> np.ndarray:
    return np.where(ids < 1000, ids, ids // 1000)


def write_instances(rng: np.random.Generator, folder: Path, stem: str, guess: np.ndarray, truth: np.ndarray) -> None:
    """The text file of a frame and its masks: overlaps, tied scores, an empty mask, classes that do not count."""
    masks = [(int(v) // 1000, guess == v) for v in np.unique(guess) if v >= 1000]
    # duplicates with errors; objects on groups, on void and on small instances
    masks += [(label, np.roll(mask, 1, 0)) for label, mask in masks if rng.random() < 0.5]
    if masks:
        masks += [(int(v), truth == v) for v in np.unique(truth) if v in THINGS]
        masks += [(int(v) // 1000, truth == v) for v in np.unique(truth) if v >= 1000 and (truth == v).sum() < 100]
        masks += [(26, truth == 1), (24, truth == 3), (33, np.zeros_like(truth, bool)), (7, truth == 7)]
        # one that is certainly false: the official tool stops if every prediction of a class is ignored
        corner = np.zeros_like(truth, bool)
        corner[:8, :8] = True
        masks += [(label, corner) for label in THINGS]
    lines = []
    for number, (label, mask) in enumerate(masks):
        name = f"masks/{stem}_{number}.png"
        pixels = mask if number % 5 == 0 else mask.astype(np.uint8) * int(rng.choice([1, 255]))
        save(folder / name, pixels)
        # few values, for equal scores
        lines.append(f"{name} {label} {rng.integers(1, 10) / 10}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}_instances.txt").write_text("".join(lines))


def write_panoptic(folder: Path, stem: str, guess: np.ndarray) -> dict[str, object]:
    evaluated = [label.id for label in EVALUATED]
    kept = np.where(np.isin(labels_of(guess), evaluated), guess, 0)
    write_id_png(folder / f"{stem}.png", kept * 77 % (1 << 24))
    segments = [{"id": int(v) * 77, "category_id": int(labels_of(v))} for v in np.unique(kept) if v]
    return {"image_id": stem, "file_name": f"{stem}.png", "segments_info": segments}


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


# --- equal to the official tools

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
    (line,) = [line for line in shown.out.splitlines() if "7 categories" in line]
    assert line.split()[2:] == [f"{100 * scores.pixel.means[f'category_{key}']:.2f}" for key in ("IoU", "iIoU")]
    assert f"{100 * scores.pixel.means['IoU']:.2f}" in shown.out
    assert f"{'all':<14}{100 * scores.instance.means['AP']:>10.2f}" in shown.out
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
    "last label": (_pixels(np.full((96, 128), 255, np.uint8)), "255 is not a Cityscapes label id; predictions have"),
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
