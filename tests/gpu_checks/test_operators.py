"""tests/gpu_checks/operators.py finds what differs."""

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
    assert tally.refused <= 2, "plain torch takes nearly all"
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
