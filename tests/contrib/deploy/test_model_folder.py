"""Trained models as folders without pickles: what they hold, and that they load wherever the model does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.classes import write_classifier
from support.micro import narrow_body
from support.small_models import CLASSES, config_of, write_run

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.config import config_to_string
from seamseg.contrib.deploy.model_card import push_model
from seamseg.contrib.deploy.model_folder import ConvertedModel, convert_model
from seamseg.contrib.deploy.options import ConversionOptions
from seamseg.models.build import build_network
from seamseg.utils.errors import InputError, SeamsegError

FILES = {"model.safetensors", "config.ini", "metadata.json"}


def convert(model: Path, out: Path, **options: Any) -> ConvertedModel:
    with narrow_body():
        return convert_model(model, out, ConversionOptions(**options))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a panoptic network; do not write to it."""
    return write_run(tmp_path_factory.mktemp("models") / "run")


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    """The same model, converted; do not write to it."""
    out = run.parent / "converted"
    convert(run, out, licence="cc-by-4.0")
    return out


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the converted model, to damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def refusal(model: Path, **options: Any) -> str:
    with narrow_body(), pytest.raises(InputError) as error:
        open_model(model, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def assert_same_weights(model: Path, folder: Path) -> None:
    with narrow_body():
        first, second = (open_model(path).snapshot for path in (model, folder))
    wanted, found = first.weights(), second.state_dict
    assert set(found) == {part for part in wanted if part in found} != set()
    for part, tensors in found.items():
        assert set(tensors) == set(wanted[part])
        for key, value in tensors.items():
            assert value.dtype == wanted[part][key].dtype
            assert torch.equal(value, wanted[part][key]), f"{part}.{key}"


# --- what a folder holds


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_every_kind_keeps_its_weights_and_results(kind: str, tmp_path: Path, micro: Path) -> None:
    model = write_run(tmp_path / "run", kind)
    made = convert(model, tmp_path / "out", licence="mit")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert made.kind == kind
    with narrow_body():
        net = build_network(config_of(kind), 2, 1)
    assert made.num_parameters == sum(p.numel() for p in net.parameters())
    assert_same_weights(model, tmp_path / "out")
    with narrow_body():
        nets = [seamseg.load(path, "cpu") for path in (model, tmp_path / "out")]
        first, second = (net.predict(micro / "img" / "val0.png") for net in nets)
    assert first == second


def test_the_files(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "np") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"body", "rpn_head", "roi_head", "sem_head"}  # noqa: SIM118
        assert file.metadata() == {"format": "pt"}
    stated = json.loads((folder / "metadata.json").read_text())
    assert stated == {
        "format": 1,
        "version": seamseg.__version__,
        "kind": "panoptic",
        "licence": "cc-by-4.0",
        "num_stuff": 2,
        "num_thing": 1,
        "categories": CLASSES.categories,
        "palette": [list(rgb) for rgb in CLASSES.palette],
        "original_ids": CLASSES.original_ids,
    }
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "all are readable by whom the umask says"
    assert (folder / "config.ini").read_text() == config_to_string(config_of("panoptic"))
    assert open_model(folder).metadata == CLASSES
    assert open_model(folder).licence == "cc-by-4.0"


def test_the_moving_average_is_what_is_shared(tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", average=True)
    convert(model, tmp_path / "out")
    assert_same_weights(model, tmp_path / "out")
    name = "roi_cls.weight"
    plain = open_model(model).snapshot.state_dict["roi_head"][name]
    assert torch.equal(open_model(tmp_path / "out").snapshot.state_dict["roi_head"][name], 2 * plain)


def test_a_converted_folder_is_a_model_too(folder: Path, tmp_path: Path) -> None:
    assert convert(folder, tmp_path / "again").licence == "cc-by-4.0"
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_detector_of_a_panoptic_model_has_its_parts_only(run: Path, tmp_path: Path) -> None:
    paths = ["body.weights=/home/me/resnet.pth", "dataloader.coco_gt=/home/me/a"]
    made = convert(run, tmp_path / "out", overrides=["general.kind=detection", *paths])
    assert "/home/me" not in (tmp_path / "out" / "config.ini").read_text()
    assert made.kind == "detection"
    state = open_model(tmp_path / "out").snapshot.state_dict
    assert set(state) == {"body", "rpn_head", "roi_head"}
    assert not [key for key in state["roi_head"] if "msk" in key]


# --- where it loads


def test_weights_and_metadata_alone(run: Path, folder: Path, tmp_path: Path) -> None:
    assert_same_weights(run, folder / "model.safetensors")
    assert open_model(run / "model_last.pth.tar", meta=folder / "metadata.json").metadata == CLASSES
    (tmp_path / "w.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert open_model(tmp_path / "w.safetensors", folder / "config.ini", folder / "metadata.json").metadata == CLASSES


def test_classifier(tmp_path: Path) -> None:
    run = write_classifier(tmp_path / "run")
    made = convert(run, tmp_path / "out", licence="mit")
    files = {"model.safetensors", "config.json", "classes.json", "metadata.json"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == files
    assert (made.kind, made.metadata.categories) == ("classification", ["class 0", "class 1", "class 2"])
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first = seamseg.classifier(run / "config.json", run / "model_best.pth.tar", "cpu")(image)
    for arguments in ((tmp_path / "out",), (run,), (tmp_path / "out" / "config.json", tmp_path / "out")):
        assert torch.equal(seamseg.classifier(*arguments, device="cpu")(image), first)
    assert convert(tmp_path / "out" / "model.safetensors", tmp_path / "again").metadata == made.metadata
    assert convert(tmp_path / "out", tmp_path / "again", force=True).licence == "mit"


# --- something wrong


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.safetensors", b"", "truncated, damaged, or not a safetensors file ("),
        ("metadata.json", b"{", "not JSON, or a truncated one"),
        ("metadata.json", b'{"format": 2}', "has format 2, this version reads 1 of `seamseg convert-model`"),
    ],
)
def test_damaged_files(copy: Path, name: str, content: bytes, expected: str) -> None:
    (copy / name).write_bytes(content)
    assert refusal(copy).startswith(f"{copy / name}: {expected}")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("conv1.weight", "not the weights of a network of "),
        ("body.conv1.weight", "has no rpn_head, roi_head: "),
    ],
)
def test_other_weights(copy: Path, key: str, expected: str) -> None:
    save_file({key: torch.zeros(2)}, copy / "model.safetensors")
    assert expected in refusal(copy)


def test_lacking_files(copy: Path) -> None:
    for file, expected in (
        ("metadata.json", "holds no classes; give metadata.bin with `meta=FILE`"),
        ("config.ini", "holds no configuration"),
        ("model.safetensors", "nor model.safetensors"),
    ):
        (copy / file).unlink()
        assert expected in refusal(copy)


def test_folders_that_are_not_overwritten(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    for target, force, expected in (
        (run, True, r"holds other files \(model_last.pth.tar\): choose a new folder"),
        (tmp_path / "notes", True, r"holds other files \(a.txt\)"),
        (folder, False, "exists; use `force=True` to overwrite it"),
        (tmp_path / "notes" / "a.txt", False, "is a file, the output is a folder"),
    ):
        with pytest.raises(InputError, match=expected):
            convert(run, target, force=force)
    convert(run, tmp_path / "out")
    convert(run, tmp_path / "out", licence="mit", force=True)
    assert open_model(tmp_path / "out").licence == "mit"
    monkeypatch.setattr(
        "seamseg.contrib.deploy.model_folder.write_json", Mock(side_effect=OSError(28, "No space left"))
    )
    with pytest.raises(SeamsegError, match="No space left"):
        convert(run, tmp_path / "full")
    assert [*(tmp_path / "full").iterdir()] == []


def test_networks_of_other_libraries_and_exported_ones_are_not_converted(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is an exported network: give the model that it was exported from"):
        convert(tmp_path / "a.onnx", tmp_path / "out")
    model = "torchvision:maskrcnn_resnet50_fpn"
    message = f"^{model}: is no network of seamseg: share it as it is, with its own model card"
    with pytest.raises(InputError, match=message):
        convert_model(model, tmp_path / "out")
    with pytest.raises(InputError, match=message):
        push_model(model, "a/b", folder=tmp_path / "card")


def test_without_safetensors(folder: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    assert refusal(folder).endswith("pip install 'seamseg[hub]'")
    with pytest.raises(InputError, match=r"model\.safetensors: needs safetensors, which is not installed; "):
        convert(run, tmp_path / "out")
    with pytest.raises(InputError, match=r"^a/b: needs safetensors, which is not installed; "):
        push_model(run, "a/b", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # other models need no package
    assert open_model(run).metadata == CLASSES


def test_the_command(run: Path, tmp_path: Path, seamseg_main: Callable[..., int], capsys: Any) -> None:
    with narrow_body():
        assert seamseg_main("convert-model", run, tmp_path / "out", "--licence", "mit") == 0
        printed = capsys.readouterr().out
        assert seamseg_main("convert-model", run, tmp_path / "out") == 2
    assert "panoptic, 3 classes" in printed
    error = capsys.readouterr().err
    assert error == f"seamseg convert-model: {tmp_path / 'out'}: exists; use --force to overwrite it\n"
