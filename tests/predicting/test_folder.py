"""The manifest of `predict` after a kill at any byte; its header; one run at a time; the rule of hidden classes."""

import errno
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seamseg.cli.main import build_parser, options_of
from seamseg.inference.images import network_input
from seamseg.inference.options import PredictOptions
from seamseg.maps.predictions import MANIFEST
from seamseg.predicting import folder as folder_module
from seamseg.predicting.folder import LOCK_NAME, OutputFolder, PredictSettings, differences, read_lines
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import lock_file


def header(model, digest, settings):
    return {"seamseg_predictions": 1, "model": model, "sha256": digest, "settings": settings}


HEAD = header("model.zip", "ab12", {"format": "coco"})


def line(number):
    name = f"é{number:02}\n"
    here = {"stamp": "7", "outputs": [f"{number}.png"], "records": [{"id": number}]}
    return {"name": name, "relative": f"{name}.jpg", "status": "ok", **here}


def outputs(out, count):
    for number in range(count):
        (out / f"{number}.png").write_bytes(b"x")


def write(folder, lines, processes=1):
    folders = [OutputFolder(folder.out, [], HEAD) for _ in range(processes)]
    for number, one in enumerate(lines):
        folders[number % processes].add(one)


def listed(folder):
    return [one for _, one in read_lines(folder.out / MANIFEST)]


@settings(max_examples=60)
@given(st.data())
def test_after_any_kills_every_photo_has_one_line(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("out")
    count = data.draw(st.integers(1, 8))
    outputs(out, count)
    folder = OutputFolder(out, [], HEAD)
    everything = [line(n) for n in range(count)]
    for _ in range(data.draw(st.integers(0, 4))):
        before = folder.begin([])
        first = (folder.out / MANIFEST).stat().st_size
        write(folder, [one for one in everything if one["name"] not in before], data.draw(st.integers(1, 3)))
        content = (folder.out / MANIFEST).read_bytes()
        (folder.out / MANIFEST).write_bytes(content[: data.draw(st.integers(first, len(content)))])
        assert before.items() <= folder.begin([]).items()
    done = folder.begin([])
    write(folder, [one for one in everything if one["name"] not in done])
    folder.finish()
    assert listed(folder) == everything
    assert (folder.out / MANIFEST).read_bytes().count(b"\n") == 1 + count


def test_another_model_or_other_settings_are_refused(tmp_path):
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    write(folder, [line(0)])
    for other, message in (
        (header("model.zip", "ab12", {"format": "raw"}), r"format coco \(now raw\)"),
        (header("model.zip", "ab12", {"format": "coco", "tta": True}), r"tta None \(now True\)"),
        (header("model.zip", "cd34", {"format": "coco"}), r"the model model\.zip before it changed"),
        (header("other.zip", "cd34", {"format": "coco"}), r"the model model\.zip \(now other\.zip\)"),
    ):
        with pytest.raises(InputError, match=message + ".*start over with `restart=True`"):
            OutputFolder(tmp_path, [], other).begin([])
        assert (tmp_path / MANIFEST).exists()
    labels = header("model.zip", "ab12", {"format": "coco", "set": ["format overlay.labels=yes", "a.b=1"]})
    assert differences(HEAD, labels) == ["set None (now --labels a.b=1)"]
    # the same file under another name is the same model
    assert not differences(HEAD, header("copy.zip", "ab12", {"format": "coco"}))
    other = OutputFolder(tmp_path, [], header("other.zip", "cd34", {}))
    assert other.begin([], restart=True) == {}
    assert listed(other) == []
    # an unknown one is not changed
    (tmp_path / MANIFEST).write_text("my own notes\n")
    with pytest.raises(InputError, match=r"damaged, or not a manifest .*`restart=True` replaces it"):
        OutputFolder(tmp_path, [], HEAD).begin([])
    assert (tmp_path / MANIFEST).read_text() == "my own notes\n"


def test_a_full_disk_is_one_clear_error_and_costs_one_image(tmp_path, monkeypatch):
    outputs(tmp_path, 3)
    folder = OutputFolder(tmp_path, [], HEAD)
    folder.begin([])
    folder.add(line(0))

    class Full(io.FileIO):
        def write(self, data):
            if not data.startswith(b"{"):  # the second attempt
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:5])

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "open", lambda path, *rest, **more: Full(path, "ab"), raising=False)
        with pytest.raises(SeamsegError, match=r"predictions\.jsonl: cannot be written: No space left"):
            folder.add(line(1))
    assert list(folder.names) == [line(0)["name"]]
    assert list(folder.begin([])) == [line(0)["name"]]
    write(folder, [line(1), line(2)])
    folder.finish()
    assert [one["name"] for one in listed(folder)] == [line(number)["name"] for number in range(3)]


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, seamseg_main, refused):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    (tmp_path / "out").mkdir()
    with lock_file(tmp_path / "out" / LOCK_NAME, "locked"):
        assert "another `seamseg predict` is writing to this folder: wait until it ends" in refused(*words)
    assert seamseg_main(*words) == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    with pytest.raises(SeamsegError, match=r"a\.png: cannot make the folder: File exists"):
        lock_file(tmp_path / "a.png" / LOCK_NAME, "").__enter__()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model_last.pth.tar").write_bytes(b"abc")
    (tmp_path / "config.ini").write_text("[general]\n")
    (tmp_path / "metadata.bin").write_bytes(b"xyz")
    return tmp_path


def settings_of(model, formats=None, **options) -> PredictSettings:
    return PredictSettings(PredictOptions(model, "in", "out", formats, **options))


def stated(settings: PredictSettings) -> dict:
    settings.path = Path(settings.options.model)
    predictor = SimpleNamespace(network=SimpleNamespace(precision="bf16"))
    return json.loads(json.dumps(settings.header(predictor)["settings"]))


def of_command(*words: str) -> dict:
    args = build_parser(["predict"]).parse_args(["predict", *words])
    return stated(PredictSettings(options_of(args, PredictOptions)))


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
    assert stated(settings) == of_command(str(model), "in", "out", *flags)
    assert settings_of("model", " coco,labels ,coco,").format_names == ["coco", "labels"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score_threshold": 1.5}, "^`score_threshold` must be between 0 and 1, not 1.5$"),
        ({"overlap_threshold": -0.1}, "^`overlap_threshold` must be between 0 and 1, not -0.1$"),
        ({"min_stuff_area": -1}, "^`min_stuff_area` must not be negative, not -1$"),
        ({"style": "blur"}, "`style` has no effect without `hide`"),
        ({"style": "cubes", "hide": "car"}, "^`style=cubes`: choose one of blur, pixels$"),
        ({"formats": "coco, ovrlay"}, "^`formats=coco, ovrlay`: there is no format 'ovrlay'; did you mean 'overlay'"),
        ({"formats": []}, "^`formats=`: no format is given; choose among cityscapes, coco, coco-results, csv"),
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
