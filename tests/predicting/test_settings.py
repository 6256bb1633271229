"""Settings of a run: the manifest header of the command line and of Python, and the privacy rule of hidden classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from seamseg.cli.main import build_parser, options_of
from seamseg.inference.images import network_input
from seamseg.inference.options import PredictOptions, Thresholds
from seamseg.predicting.folder import PredictSettings
from seamseg.utils.errors import InputError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model_last.pth.tar").write_bytes(b"abc")
    (tmp_path / "config.ini").write_text("[general]\n")
    (tmp_path / "metadata.bin").write_bytes(b"xyz")
    return tmp_path


def predictor(metadata=None, classes=None):
    network = SimpleNamespace(precision="bf16", uses_torch=True)
    return SimpleNamespace(
        network=network, metadata=metadata, classes=classes, kind="panoptic", thresholds=Thresholds(score_threshold=0.1)
    )


def settings_of(model, formats=None, **options) -> PredictSettings:
    return PredictSettings(PredictOptions(model, "in", "out", formats, **options))


def of_command(*words: str) -> dict:
    args = build_parser(["predict"]).parse_args(["predict", *words])
    settings = PredictSettings(options_of(args, PredictOptions))
    settings.path = Path(words[0])
    return json.loads(json.dumps(settings.header(predictor())["settings"]))


def test_a_header_has_all_that_changes_the_outputs(model: Path) -> None:
    words = (str(model), "in", "out")
    defaults = of_command(*words)
    assert (defaults["format"], defaults["config"]) == ("overlay", "config.ini 87f892c309d5")
    assert of_command(*words, "--batch-size", "3", "--limit", "1", "--compile", "--quiet") == defaults
    changed = {"set": ["roi.nms_threshold=.3"], "tiles": "512", "min_area": 10, "tta": "flip,0.75"}
    flags = ("--set", "roi.nms_threshold=.3", "--tiles", "512", "--min-area", "10", "--tta", "flip,0.75")
    assert of_command(*words, *flags) == defaults | changed
    assert of_command(*words, "--pad-to", "64") == defaults | {"pad_to": 64}


def test_python_has_the_header_of_the_command(model: Path) -> None:
    flags = ["--format", "coco,labels", "--tiles", "512", "--tta", "flip,0.5,1"]
    flags += ["--anonymize", "car,bus", "--classes", "car"]
    inference = {"tiles": 512, "tta": "flip,0.5,1", "classes": ["car"]}
    settings = settings_of(str(model), ["coco", "labels", "coco"], hide=["car", "bus"], **inference)
    settings.path = model
    assert settings.header(predictor())["settings"] == of_command(str(model), "in", "out", *flags)
    assert settings_of("model", " coco,labels ,coco,").format_names == ["coco", "labels"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "blur"}, "`style` has no effect without `hide`"),
        ({"style": "cubes", "hide": "car"}, "^`style=cubes`: choose one of blur, pixels$"),
        ({"formats": "coco, ovrlay"}, "^`formats=coco, ovrlay`: there is no format 'ovrlay'; did you mean 'overlay'"),
        ({"formats": []}, "^`formats=`: no format is given; choose among cityscapes, coco, csv"),
        ({"formats": ["overlay"], "hide": "car"}, "`formats=overlay` shows what `hide` hides"),
    ],
)
def test_conflicts(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings_of("model", **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tta": "flip"}, {"tiles": 128, "tile_overlap": 32, "shortest_size": 160}])
@pytest.mark.usefixtures("narrow")
def test_maps_do_not_depend_on_detections_that_are_left_out(options: dict, micro_run: Path, micro: Path) -> None:
    every, some = (settings_of(micro_run, name, **options).load("cpu") for name in ("raw", "coco"))
    photos = [Image.open(micro / "img" / f"val{i}.png") for i in (0, 0, 2)]
    images = [network_input(photo, every.input_size) for photo in photos]
    all_found = every.raw(images)
    scores = np.sort(np.concatenate([p.scores for p in all_found]))
    # about half of them, one, and none
    for threshold in (float(np.median(scores)), float(scores[-2]), 1.0):
        some.thresholds = every.thresholds = replace(every.thresholds, score_threshold=threshold)
        found = some.raw(images)
        count = sum(len(p.scores) for p in found)
        if not options and threshold < scores[-2]:
            assert count < len(scores)
        if threshold == 1:
            assert count == (len(scores) if options else 0)
        for one, other in zip(all_found, found):
            assert every.result(one, (64, 96)) == some.result(other, (64, 96))
            masks = [p.mask_logits[p.scores > np.float32(threshold)] for p in (one, other)]
            assert masks[0].tobytes() == masks[1].tobytes()
