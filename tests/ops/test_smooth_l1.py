"""Smooth L1: goldens, plain form, failures."""

import pytest
import torch
from support.golden_files import golden
from torch.testing import assert_close

from seamseg.ops.boxes import smooth_l1


@pytest.mark.parametrize("sigma", [1, 3])
def test_golden(sigma):
    x = golden("smooth_l1/x1").requires_grad_()
    loss = smooth_l1(x, golden("smooth_l1/x2"), sigma)
    loss.sum().backward()
    assert_close(loss, golden(f"smooth_l1/sigma{sigma}/loss"), rtol=1e-6, atol=1e-6)
    assert_close(x.grad, golden(f"smooth_l1/sigma{sigma}/grad"), rtol=1e-6, atol=1e-6)


def test_gradcheck():
    x, target = torch.randn(2, 5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: smooth_l1(x, target, 3.0), x.requires_grad_())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="one shape, got float32 tensor of shape 3x4 and float32 tensor of shape 1x4"):
        smooth_l1(torch.rand(3, 4), torch.rand(1, 4), 1)
    with pytest.raises(ValueError, match="sigma must be positive, got 0"):
        smooth_l1(torch.rand(3, 4), torch.rand(3, 4), 0)
