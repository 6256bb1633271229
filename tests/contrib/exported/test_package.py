"""Packages that are refused before any of their code runs."""

import json
import zipfile
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from support.exported import read_package_metadata

from seamseg.contrib.exported.package import (
    ONEDNN_BF16,
    PackageSession,
    _check,
    cpu_features,
    missing_features,
    requirements,
)
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError

CLASSES = Metadata(1, 1, ["road", "car"], [(1, 2, 3), (4, 5, 6)], [7, 26])
METADATA = ExportedMetadata("panoptic", "[general]\n", CLASSES, (64, 96), extra=requirements("cpu"))
MODEL = "net/data/aotinductor/model"


def stated(**extra):
    """The metadata of a package with other requirements."""
    return {METADATA_KEY: replace(METADATA, extra={**METADATA.extra, **extra}).to_json()}


def package(path, **metadata):
    """A package without code, with metadata of AOTInductor."""
    texts = {METADATA_KEY: METADATA.to_json(), "AOTI_DEVICE_KEY": "cpu", **metadata}
    texts = {name: text for name, text in texts.items() if text is not None}
    files = {"net/archive_format": "pt2", f"{MODEL}/a.wrapper_metadata.json": json.dumps(texts)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def refusal(path):
    with pytest.raises(InputError) as caught:
        PackageSession(path, "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({METADATA_KEY: None}, "not a package that seamseg exported"),
        ({METADATA_KEY: '{"format": 99, "version": "9.9"}'}, "of another version"),
        ({"AOTI_DEVICE_KEY": "cuda"}, "compiled for 'cuda', not for cpu"),
        # of other machines
        (stated(torch="99.0"), "needs PyTorch 99.0"),
        (stated(cpu="SVE256"), "compiled for CPUs with SVE256"),
        (stated(cpu_features=["avx9", "amx-tiles"]), "needs avx9, amx-tiles, which this CPU lacks"),
        # what is left: torch finds no library in it
        ({}, "cannot load the package"),
    ],
)
def test_refused(tmp_path, metadata, reason):
    assert reason in refusal(package(tmp_path / "a.pt2", **metadata))


def test_damaged_files(tmp_path):
    path = tmp_path / "a.pt2"
    assert "cannot read the package" in refusal(path)
    whole = package(tmp_path / "b.pt2").read_bytes()
    assert read_package_metadata(tmp_path / "b.pt2") == METADATA
    for content, reason in (
        (whole[: len(whole) // 2], "damaged or truncated"),
        (whole.replace(b"[general]", b"[GENERAL]"), "a damaged or truncated package"),
    ):
        path.write_bytes(content)
        assert reason in refusal(path)


def test_instruction_sets(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    for needed in ("DEFAULT", "AVX2"):
        _check(tmp_path, replace(METADATA, extra={**METADATA.extra, "cpu": needed}), "cpu", "cpu")
    with pytest.raises(InputError, match="compiled for CPUs with AVX512, this one has AVX2"):
        _check(tmp_path, replace(METADATA, extra={**METADATA.extra, "cpu": "AVX512"}), "cpu", "cpu")
    known = {"fma3": True, "avx512_vnni": True, "amx_tile": True, "avx512_bf16": False, "l2_cache_size": 1}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: known)
    monkeypatch.setattr("seamseg.ops.fused.onednn_takes_bf16", lambda: False)
    assert cpu_features() == {"fma3", "avx512_vnni", "amx_tile"}
    # by their names in torch, and in flags of compilers
    needed = ["fma", "avx512vnni", "avx512_vnni", "amx-tile", "avx512bf16", "l2-cache-size", ONEDNN_BF16]
    assert missing_features(needed) == ["avx512bf16", "l2-cache-size", ONEDNN_BF16]
    monkeypatch.setattr("seamseg.ops.fused.onednn_takes_bf16", lambda: True)
    assert missing_features([ONEDNN_BF16]) == []


# without a number of processes the rank is left over in a shell
@pytest.mark.parametrize(("device", "processes", "index"), [("auto", "2", 1), ("cuda:0", "2", 0), ("auto", "", 0)])
def test_each_process_uses_its_own_gpu(monkeypatch, tmp_path, device, processes, index):
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setenv("LOCAL_RANK", "1")
    if not processes:
        monkeypatch.delenv("WORLD_SIZE")
    load = Mock()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", load)
    assert PackageSession(package(tmp_path / "a.pt2", AOTI_DEVICE_KEY="cuda"), device).device == f"cuda:{index}"
    assert load.call_args.args[-1] == index
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="needs a GPU"):
        PackageSession(tmp_path / "a.pt2", "auto")
