"""`seamseg doctor`: the report of a working and of a broken installation."""

import importlib
import re
from importlib import metadata

import pytest

from seamseg import ops
from seamseg.cli import doctor
from seamseg.cli.main import main
from seamseg.utils import native


def test_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    code = main(["doctor"])
    out, err = capsys.readouterr()
    assert code == (1 if err else 0)
    reported = {line[:18].strip(): line[18:] for line in out.splitlines()}
    assert reported["torch"] == metadata.version("torch")
    required = [name for name in metadata.requires("seamseg") or () if "extra" not in name]
    assert {re.split("[<>=]", name)[0] for name in required} <= {*reported}
    assert "vistas_r50" in reported["experiments"]
    assert reported["launcher"].startswith("rank 1 of 4")
    assert reported["kernels, maps"] == "loaded"
    assert [line.split()[0] for line in out.split("operators\n")[1].splitlines()] == list(ops.implementations())


def test_a_broken_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = importlib.import_module

    def import_module(name: str, package: str | None = None) -> object:
        if name == "torch":
            raise OSError("libcudart.so.13: cannot open\nshared object file")
        return known(name, package)

    monkeypatch.setattr(doctor.importlib, "import_module", import_module)
    assert main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("seamseg")
    assert "to fix: torch cannot be imported: libcudart.so.13: cannot open shared object file\n" in err


def test_missing_libraries_and_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = f"{native.COMPILER_FAILED}csrc/cpu/nms.cpp:7:1: error: no member 'permute'"
    monkeypatch.setattr(native, "_report", lambda: {"_C": error, "_C_cuda": "no nvcc was found", "_maps": "built"})
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no-such-package"))
    assert main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "no-such-package   MISSING" in out
    assert "to fix: no-such-package is not installed: pip install no-such-package\n" in err
    (problem,) = (line for line in err.splitlines() if "kernels" in line)
    assert problem.startswith(f"to fix: kernels are missing, slower replacements are used: _C: {error}; compile")
    assert problem.endswith(native.REBUILD)
