"""Packages that are refused before any of their code runs."""

import json
import zipfile

import pytest

from seamseg.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.package import PackageSession, _check, read_package_metadata, requirements
from seamseg.utils.errors import InputError

CLASSES = Metadata(1, 1, ["road", "car"], [(1, 2, 3), (4, 5, 6)], [7, 26])
METADATA = ExportedMetadata("panoptic", "[general]\n", CLASSES, (64, 96), extra=requirements("cpu"))
MODEL = "net/data/aotinductor/model"


def package(path, members=None, **metadata):
    """A package without code: `members` by name, `metadata` of AOTInductor."""
    texts = {METADATA_KEY: METADATA.to_json(), "AOTI_DEVICE_KEY": "cpu", **metadata}
    texts = {name: text for name, text in texts.items() if text is not None}
    files = {"net/archive_format": "pt2", f"{MODEL}/a.wrapper_metadata.json": json.dumps(texts), **(members or {})}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def refusal(path):
    with pytest.raises(InputError) as caught:
        PackageSession(path, "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_metadata(tmp_path):
    assert read_package_metadata(package(tmp_path / "a.pt2")) == METADATA


@pytest.mark.parametrize(
    ("members", "metadata", "reason"),
    [
        ({}, {METADATA_KEY: None}, "not a package that seamseg exported"),
        ({"net/data/weights/model.pt": "pickle"}, {}, "it holds 'net/data/weights/model.pt'"),
        ({"net/models/model.json": "{}"}, {}, "it holds 'net/models/model.json'"),
        ({f"{MODEL}/../../escape.so": ""}, {}, "escape.so"),
        ({}, {METADATA_KEY: "{"}, "is not JSON"),
        ({}, {METADATA_KEY: '{"format": 99, "version": "9.9"}'}, "update seamseg"),
        ({}, {"AOTI_DEVICE_KEY": "cuda"}, "compiled for 'cuda', not for cpu"),
        # what is left: torch finds no library in it
        ({}, {}, "cannot load the package"),
    ],
)
def test_refused(tmp_path, members, metadata, reason):
    assert reason in refusal(package(tmp_path / "a.pt2", members, **metadata))


def test_files_that_are_no_packages(tmp_path):
    path = tmp_path / "a.pt2"
    assert "cannot read the package" in refusal(path)
    path.write_bytes(b"not a zip")
    assert "damaged or truncated" in refusal(path)
    whole = package(tmp_path / "b.pt2").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "damaged or truncated" in refusal(path)
    path.write_bytes(whole.replace(b"[general]", b"[GENERAL]"))
    assert "a damaged package" in refusal(path)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"torch": "99.0"}, "needs PyTorch 99.0"),
        ({"torch": None}, "does not state the version of PyTorch"),
        ({"cpu": "SVE256"}, "compiled for CPUs with SVE256"),
    ],
)
def test_other_machines(tmp_path, extra, reason):
    metadata = ExportedMetadata("panoptic", "", CLASSES, (64, 96), extra={**requirements("cpu"), **extra})
    assert reason in refusal(package(tmp_path / "a.pt2", seamseg=metadata.to_json()))


def test_for_a_gpu_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="needs a GPU"):
        PackageSession(package(tmp_path / "a.pt2", AOTI_DEVICE_KEY="cuda"))


@pytest.mark.parametrize(("needed", "runs"), [("DEFAULT", True), ("AVX2", True), ("AVX512", False)])
def test_instruction_sets(monkeypatch, tmp_path, needed, runs):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    metadata = ExportedMetadata("panoptic", "", CLASSES, (64, 96), extra={**requirements("cpu"), "cpu": needed})
    if runs:
        _check(tmp_path, metadata, "cpu", "cpu")
    else:
        with pytest.raises(InputError, match="compiled for CPUs with AVX512, this one has AVX2"):
            _check(tmp_path, metadata, "cpu", "cpu")
