"""Pixel counts: exact, void left out, predictions of void held against the true class."""

from __future__ import annotations

import math

import numpy as np
import torch

from seamseg.maps.evaluation import ConfusionMatrix


def test_iou_by_hand():
    confusion = ConfusionMatrix(3)
    confusion.add(np.array([[0, 0, 1, 255]]), torch.tensor([[0, 1, 255, 2]]))
    assert confusion.counts.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    iou = confusion.iou()
    assert iou[0] == 0.5
    assert iou[1] == 0.0
    assert math.isnan(iou[2])
    assert confusion.miou() == 0.25


def test_counts_stay_exact_beyond_float32():
    confusion = ConfusionMatrix(1)
    confusion.add(np.zeros((1, 3), np.uint8), np.zeros((1, 3), np.uint8))
    confusion.counts *= 2**24 + 1
    confusion.add(np.zeros(1, np.uint8), np.zeros(1, np.uint8))
    assert confusion.counts[0, 0] == 3 * (2**24 + 1) + 1
