"""Pixel counts: exact, void left out, predictions of void held against the true class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seamseg.evaluation import ConfusionMatrix


def test_iou_by_hand():
    confusion = ConfusionMatrix(3)
    confusion.add(np.array([[0, 0, 1, 255]]), torch.tensor([[0, 1, 255, 2]]))
    assert confusion.counts.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    iou = confusion.iou()
    assert iou[0] == 0.5
    assert iou[1] == 0.0
    assert math.isnan(iou[2])
    assert confusion.miou() == 0.25


def test_class_without_ground_truth_but_with_predictions_counts():
    confusion = ConfusionMatrix(2)
    confusion.add(np.array([0, 0]), np.array([0, 1]))
    assert confusion.iou().tolist() == [0.5, 0.0]


def test_counts_stay_exact_beyond_float32():
    confusion = ConfusionMatrix(1)
    confusion.add(np.zeros((1, 3), np.uint8), np.zeros((1, 3), np.uint8))
    confusion.load_state_tensor(confusion.state_tensor() * (2**24 + 1))
    confusion.add(np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    assert confusion.counts[0, 0] == 3 * (2**24 + 1) + 1


@pytest.mark.parametrize("parts", [2, 5])
def test_merge_is_the_same_as_one_pass(parts):
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 6, (10, 2, 8, 9))
    maps[maps == 5] = 255
    whole = ConfusionMatrix(5)
    pieces = [ConfusionMatrix(5) for _ in range(parts)]
    for i, (gt, pred) in enumerate(maps):
        whole.add(gt, pred)
        pieces[i % parts].add(gt, pred)
    for piece in pieces[1:]:
        pieces[0].merge(piece)
    assert (pieces[0].counts == whole.counts).all()


def test_nothing_at_all():
    assert math.isnan(ConfusionMatrix(2).miou())
