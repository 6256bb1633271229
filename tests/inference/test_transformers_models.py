"""Panoptic networks of transformers: opened from their folders, run at the sizes of their authors, or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import seamseg_main
from support.tiny_transformers import (
    CITYSCAPES,
    CONFIGS,
    SIDE,
    SMALL,
    assert_equal,
    build,
    edit,
    folder,
    photo,
    refusal,
    save,
)
from torch.nn import functional

import seamseg
from seamseg.checkpoints.foreign import is_transformers
from seamseg.checkpoints.model_path import digest
from seamseg.cli.doctor import _print_bench
from seamseg.inference.foreign.class_lists import known_lists
from seamseg.inference.result import Panoptic

__all__ = ["folder", "seamseg_main"]
pytest.importorskip("transformers")
FAMILIES = list(CONFIGS)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each family with the classes of Cityscapes; do not write to them."""
    root = tmp_path_factory.mktemp("transformers")
    return {name: save(name, root / name) for name in FAMILIES}


# --- what a network computes


def test_results_and_options(folders: dict[str, Path], family: str) -> None:
    model = seamseg.load(folders[family], **SMALL)
    assert (model.kind, model.network.precision, model.metadata.num_thing) == ("panoptic", "float32", 8)
    result = model.predict(photo(100, 150))
    assert isinstance(result, Panoptic)
    assert result.size == (100, 150)
    image = photo(160, 300)
    tiled = seamseg.load(folders[family], device="cpu", shortest_size=160, tiles=128, score_threshold=0.1)
    prediction = tiled.raw([image])[0]
    assert prediction.queries is None
    assert prediction.semantic is not None
    assert prediction.semantic.shape == (160, 300)
    half = seamseg.load(folders[family], precision="bf16", classes="car,road", preview=True, **SMALL)
    assert half.network.precision == "bfloat16"
    assert {segment.name for segment in half.predict(image).segments} <= {"car", "road"}
    # the thresholds of the authors, unless options change them
    t = seamseg.load(folders[family], device="cpu").thresholds
    assert (t.score_threshold, t.overlap_threshold) == (0.85 if family == "detr" else 0.8, 0.8)
    t = seamseg.load(folders[family], device="cpu", score_threshold=0.3, overlap_threshold=0.6).thresholds
    assert (t.score_threshold, t.overlap_threshold) == (0.3, 0.6)


def test_input_of_the_network(folders: dict[str, Path], family: str) -> None:
    """The outputs are those of the library for an image that is normalised and padded as the authors do."""
    predictor = seamseg.load(folders[family], **SMALL)
    image = photo(40, 50)
    prediction = predictor.raw([image])[0]
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = torch.from_numpy(image).permute(2, 0, 1) / 255
    if family.startswith("eomt"):
        values, padded = (functional.pad(pixels, (0, SIDE - 50, 0, SIDE - 40)) - mean) / std, (SIDE, SIDE)
    elif family == "detr":
        values, padded = (pixels - mean) / std, (40, 50)
    else:
        values, padded = functional.pad((pixels - mean) / std, (0, 14, 0, 24)), (64, 64)
    further = {}
    if family == "oneformer":
        tokens = predictor.network._inputs["task_inputs"]
        assert tokens.shape == (1, 8)
        assert (tokens != 0).sum() == 6  # start, four words, end
        further["task_inputs"] = tokens
    with torch.inference_mode():
        outputs = build(family)(pixel_values=values[None], **further)
    masks = outputs["pred_masks" if family == "detr" else "masks_queries_logits"][0]
    scores = outputs["logits" if family == "detr" else "class_queries_logits"][0].softmax(-1)
    kept = scores.argmax(-1) < 19
    assert kept.any()
    assert prediction.queries is not None
    assert prediction.queries.padded_size == padded
    np.testing.assert_allclose(prediction.queries.mask_logits, masks[kept], atol=1e-4)
    np.testing.assert_allclose(prediction.queries.scores, scores[kept].max(-1)[0], atol=1e-5)
    assert prediction.queries.classes.tolist() == scores[kept].argmax(-1).tolist()


def test_mixed_sizes_are_as_one_by_one(folders: dict[str, Path], family: str) -> None:
    model = seamseg.load(folders[family], **SMALL)
    images = [photo(40, 60), photo(60, 40, 1), photo(40, 60, 2), photo(33, 41, 3)]
    for together, image in zip(model.network.run(images), images):
        assert_equal(together, model.network.run([image])[0])


@pytest.mark.slow
def test_without_torchvision(folders: dict[str, Path]) -> None:
    """The processors of transformers, which fail without it, have no part in a result."""
    program = (
        "import sys; sys.modules['torchvision'] = None; import numpy as np, seamseg; "
        "model = seamseg.load(sys.argv[1], device='cpu', shortest_size=40, score_threshold=0.1); "
        "print(model.predict(np.zeros((40, 60, 3), np.uint8)).size, "
        "any('image_processing_oneformer' in name for name in sys.modules))"
    )
    words = [sys.executable, "-c", program, str(folders["oneformer"])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "(40, 60) False\n"


def test_columns_of_another_order(tmp_path: Path) -> None:
    save("mask2former", tmp_path / "a")
    save("mask2former", tmp_path / "b", CITYSCAPES[::-1])
    first, second = (seamseg.load(tmp_path / name, **SMALL).raw([photo(40, 60)])[0].queries for name in "ab")
    assert first is not None
    assert second is not None
    assert (first.classes == 18 - second.classes).all()


@pytest.mark.parametrize("name", ["eomt", "eomt_dinov3"])
def test_images_above_the_square(folders: dict[str, Path], name: str) -> None:
    network = seamseg.load(folders[name], device="cpu").network
    large, small = photo(2 * 40, 2 * SIDE), np.asarray(Image.fromarray(photo(80, 128)).resize((SIDE, 40), 2))
    found, expected = network.run([large])[0], network.run([small])[0]
    assert (found.size, found.queries.padded_size) == ((80, 128), (128, 128))
    np.testing.assert_allclose(found.queries.mask_logits, expected.queries.mask_logits, atol=1e-4)


# --- sizes


def test_sizes_of_the_authors(tmp_path: Path) -> None:
    lists = {name: known.metadata.categories for name, known in known_lists().items()}
    expected = {"cityscapes": (1024, 2048), "vistas": (1536, 2048), "vistas_v2": (1536, 2048)}
    expected |= {"coco_panoptic": (800, 1066), "ade20k": (640, 853)}
    for name, names in lists.items():
        folder = save("mask2former", tmp_path / name, names)
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 384, "width": 384}}))
        model = seamseg.load(folder, device="cpu")
        assert model.input_size.of((3000, 6000 if name == "cityscapes" else 4000)) == expected[name], name
        assert (model.thresholds.score_threshold, model.thresholds.overlap_threshold) == (0.8, 0.8)
    assert model.input_size.of((640, 6400)) == (256, 2560)
    folder = save("maskformer", tmp_path / "maskformer", lists["ade20k"])
    assert seamseg.load(folder, device="cpu").thresholds.score_threshold == 0.7


def test_sizes_by_options(folders: dict[str, Path]) -> None:
    def size(family: str, **options: Any) -> tuple[int, int]:
        return seamseg.load(folders[family], device="cpu", **options).input_size.of((300, 400))

    assert size("eomt") == (48, 64)
    assert size("mask2former", preview=True) == (512, 682)
    assert size("mask2former", size=100) == (75, 100)
    assert size("mask2former", shortest_size=60) == (60, 80)
    assert size("mask2former", longest_max_size=1100) == (825, 1100)
    assert size("mask2former", overrides=["dataloader.shortest_size=30"]) == (30, 40)


def test_size_and_normalisation_of_the_processor(tmp_path: Path) -> None:
    """For classes of no known data set; never a fixed size."""
    folder = save("mask2former", tmp_path / "net", ["lawn", "dog"])
    classes = tmp_path / "classes.json"
    classes.write_text(json.dumps([{"id": 1, "name": "lawn", "isthing": 0}, {"id": 2, "name": "dog", "isthing": 1}]))
    content = {
        "size": {"shortest_edge": 320, "longest_edge": 640},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [1, 1, 2],
    }
    for size, expected in ((content["size"], (320, 426)), ({"height": 384, "width": 384}, (800, 1066))):
        (folder / "preprocessor_config.json").write_text(json.dumps({**content, "size": size}))
        model = seamseg.load(folder, device="cpu", meta=classes)
        assert model.input_size.of((3000, 4000)) == expected
    values = model.network.normalise(torch.zeros(3, 1, 1, dtype=torch.uint8)).flatten().tolist()
    assert values == [-0.5, -0.5, -0.25]
    for mean in ([1, 2], [1, 2, float("nan")], [1, 2, 10**400]):
        edit(folder / "preprocessor_config.json", image_mean=mean)
        assert refusal(folder, meta=classes).endswith("image_mean must be three numbers")
    edit(folder / "preprocessor_config.json", image_mean=[0, 0, 0], image_std=[1, 0, 1])
    assert refusal(folder, meta=classes).endswith("image_std must be positive")


# --- classes


def test_classes_that_a_network_states(tmp_path: Path) -> None:
    folder = save("oneformer", tmp_path / "net", ["dog", "lawn"])
    assert "are things is not stated" in refusal(folder)
    metadata = {"0": "lawn", "1": "dog", "thing_ids": [1], "class_names": ["lawn", "dog"]}
    (folder / "preprocessor_config.json").write_text(json.dumps({"metadata": metadata}))
    assert seamseg.load(folder, device="cpu").metadata.categories == ["lawn", "dog"]
    # a processor with a tokenizer has one file since release 5
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": {"metadata": metadata}}))
    assert seamseg.load(folder, device="cpu").metadata.categories == ["lawn", "dog"]
    (folder / "own_panoptic.json").write_text(
        json.dumps({"0": {"name": "lawn", "isthing": 1}, "1": {"name": "dog", "isthing": 0}})
    )
    (folder / "preprocessor_config.json").write_text(json.dumps({"class_info_file": "own_panoptic.json"}))
    assert seamseg.load(folder, device="cpu").metadata.categories == ["dog", "lawn"]
    (folder / "own_panoptic.json").write_text(json.dumps({"0": {"name": "cat", "isthing": 1}}))
    assert "states that 'cat' is a thing, which is none of its classes" in refusal(folder)
    metadata["thing_ids"] = [1, 2]
    (folder / "preprocessor_config.json").write_text(json.dumps({"metadata": metadata}))
    assert "states that 'id 2' is a thing, which is none of its classes" in refusal(folder)


# --- commands


def test_bench(folder: Path, seamseg_main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the card of a folder, its first part states the licence."""
    (folder / "README.md").write_text(
        "---\nlibrary_name: transformers\nlicense: 'mit'\n---\n# A card\nlicense: other\n"
    )
    assert seamseg_main("doctor", "--bench", folder, "--size", "32x64", "--rounds", 1, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["stages_ms"]) == ["decode", "resize", "network", "fusion", "encode"]
    assert (report["licence"], report["model"]) == ("mit", str(folder))
    _print_bench(report)
    assert capsys.readouterr().out.splitlines()[0].endswith(", licence of the weights: mit")


def test_classes_file_on_the_command_line(
    tmp_path: Path, seamseg_main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save("detr", tmp_path / "net", ["lawn", "dog"])
    Image.fromarray(photo(60, 80)).save(tmp_path / "a.png")
    classes = tmp_path / "classes.ini"
    classes.write_text("[lawn]\nid = 1\nkind = stuff\n[dog]\nid = 2\nkind = thing\n")
    words = ["predict", folder, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--shortest-size", 40]
    assert seamseg_main(*words) == 2
    assert "with --meta FILE" in capsys.readouterr().err
    assert seamseg_main(*words, "--classes-file", classes) == 0
    header = json.loads((tmp_path / "out/predictions.jsonl").read_text().splitlines()[0])
    assert digest(folder) in json.dumps(header)
    bench = ("doctor", "--size", "32x64", "--rounds", 1, "--classes-file", classes, "--bench")
    assert seamseg_main(*bench, folder) == 0
    capsys.readouterr()
    assert seamseg_main(*bench) == 2
    assert "--meta is for networks of transformers and torchvision" in capsys.readouterr().err


def test_folders_of_ours_are_none(tmp_path: Path) -> None:
    assert not is_transformers(tmp_path)
    (tmp_path / "config.json").write_text('{"network": {"arch": "resnet50"}}')
    assert not is_transformers(tmp_path)
    (tmp_path / "config.json").write_text("[")
    assert not is_transformers(tmp_path)
