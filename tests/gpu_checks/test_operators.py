"""tests/gpu_checks/operators.py finds what differs, and goes on without an operator that ends its process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

import operators

from seamseg.ops import implementations

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted(implementations()))
def test_kernels_equal_plain(name):
    """Of all types, layouts and small sizes, with what is written to."""
    tally = operators.Tally()
    for seed in range(60):
        operators.compare(name, seed, CPU, tally)
    assert tally.compared > 20
    assert not tally.failures


@pytest.mark.parametrize("right", [True, False])
def test_differences_are_found(monkeypatch, right):
    plain = operators.plain_form("box_iou")
    monkeypatch.setattr(operators, "plain_form", lambda name: lambda a, b: plain(a, b) + (not right))
    tally = operators.Tally()
    for seed in range(20):
        operators.compare("box_iou", seed, CPU, tally)
    assert tally.compared > 10
    assert 0 < tally.unaligned < tally.compared
    assert len(tally.failures) == (0 if right else operators.MOST_FAILURES)


def test_an_operator_that_ends_its_process_fails_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    calls = []

    def run(command, **options):
        calls.append(command)
        (tmp_path / "result.json").write_text(
            json.dumps({"cases": {}, "operators": {}, "seed": 0, "rounds": len(calls)})
        )
        if "--without=nms" in command:
            return subprocess.CompletedProcess(command, 0, stderr="")
        (tmp_path / "now").write_text("nms")
        return subprocess.CompletedProcess(command, -11, stderr="a\nRuntimeError: CUDA error: illegal\nhints\n")

    monkeypatch.setattr(subprocess, "run", run)
    given = {"names": [], "device": "cpu", "seed": 0, "seconds": 0, "no_cases": True, "json": None}
    result = operators.in_a_process(argparse.Namespace(**given), tmp_path)
    assert len(calls) == 2
    assert result["rounds"] == 2
    assert result["broken"] == {"nms": "RuntimeError: CUDA error: illegal"}
    assert operators.verdict(result) == 1
    assert "1 fail: nms" in capsys.readouterr().out
