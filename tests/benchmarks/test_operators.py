"""benchmarks/operators.py finds what differs, and goes on without an operator that ends its process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import operator_cases
import operators

CPU = torch.device("cpu")


@pytest.mark.parametrize("shift", [0, 1])
def test_tensors_keep_their_layout(shift):
    x = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    for given in (
        x,
        x.contiguous(memory_format=torch.channels_last),
        x[:, 1:, :, ::2],
        x[:1].expand(3, -1, -1, -1),
        x[:0],
    ):
        (found,) = operators.moved([given], CPU, shift)
        assert torch.equal(found, given)
        assert found.stride() == given.stride()
        assert found.storage_offset() == shift
        assert found.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


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


def test_arguments_that_are_written_to_are_compared(monkeypatch):
    monkeypatch.setattr(operators, "plain_form", lambda name: lambda id_map, labels, ids: None)
    tally = operators.Tally()
    for seed in range(20):
        operators.compare("fill_free", seed, CPU, tally)
    assert tally.failures


def test_every_operator_has_a_plain_form():
    assert all(callable(operators.plain_form(name)) for name in operators.implementations())


def test_an_operator_that_ends_its_process_fails_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    calls = []

    def run(command, **options):
        calls.append(command)
        if "--without=nms" in command:
            (tmp_path / "result.json").write_text(json.dumps({"cases": {}, "operators": {}, "seed": 0, "rounds": 1}))
            return subprocess.CompletedProcess(command, 0, stderr="")
        (tmp_path / "now").write_text("nms")
        return subprocess.CompletedProcess(command, -11, stderr="a\nRuntimeError: CUDA error: illegal\nhints\n")

    monkeypatch.setattr(subprocess, "run", run)
    arguments = argparse.Namespace(names=[], device="cuda", seed=0, seconds=1, no_cases=False)
    result = operators.in_a_process(arguments, tmp_path)
    assert len(calls) == 2
    assert result["broken"] == {"nms": "RuntimeError: CUDA error: illegal"}
    assert operators.verdict(result) == 1
    assert "1 fail: nms" in capsys.readouterr().out


@pytest.mark.parametrize("case", [operator_cases.large_abn, operator_cases.large_pool])
def test_cases_run_small_on_a_cpu(case):
    case(CPU)
