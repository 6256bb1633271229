"""The head of DeepLabV3: goldens of the original, forward and backward; equality with plain torch layers."""

import zlib

import numpy as np
import pytest
import torch
from support.golden_files import array, tensor
from support.sections import sem
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from seamseg.models.semantic import DeeplabV3
from seamseg.ops.norm import InPlaceABN

KEYS = [
    *(f"map_convs.{i}.weight" for i in range(4)),
    *(f"map_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    "global_pooling_conv.weight",
    *(f"global_pooling_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    "red_conv.weight",
    "pool_red_conv.weight",
    *(f"red_bn.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
]


def golden_head(case: int) -> DeeplabV3:
    window = tuple(array("vistas", f"head_op/{case}/pooling_size").tolist())
    config = sem("semantic", hidden_channels=4, out_channels=5, dilations=(1, 2, 3))
    head = DeeplabV3(config, 6, InPlaceABN)
    head.pooling_size = None if window == (0, 0) else window
    head.load_state_dict({key: tensor("vistas", f"head_op/state/{key}") for key in KEYS})
    return head


@pytest.mark.parametrize("case", range(7))
def test_golden_inference(case):
    head = golden_head(case).eval()
    assert list(head.state_dict()) == KEYS
    expected = tensor("vistas", f"head_op/{case}/y")
    assert_close(head(tensor("vistas", f"head_op/{case}/x")), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("case", [0, 6])
def test_golden_training(case):
    head = golden_head(case).train()
    x = tensor("vistas", f"head_op/{case}/x").requires_grad_()
    y = head(x)
    assert_close(y, tensor("vistas", f"head_op/{case}/train_y"), rtol=1e-5, atol=5e-6)
    draws = np.random.RandomState(zlib.crc32(b"20190601:deeplab_op.dy")).random_sample(y.numel())
    (dx,) = torch.autograd.grad(y, x, torch.from_numpy(2 * draws - 1).float().view_as(y))
    assert_close(dx, tensor("vistas", f"head_op/{case}/train_dx"), rtol=1e-4, atol=1e-5)


def plain_norm(norm: InPlaceABN, x: torch.Tensor) -> torch.Tensor:
    y = functional.batch_norm(x, None, None, norm.weight.abs() + norm.eps, norm.bias, True, 0.1, norm.eps)
    return functional.leaky_relu(y, 0.01)


def plain_head(head: DeeplabV3, x: torch.Tensor) -> torch.Tensor:
    """The head in training mode, written with torch's own layers."""
    local = head.red_conv(plain_norm(head.map_bn, torch.cat([conv(x) for conv in head.map_convs], 1)))
    context = head.global_pooling_conv(functional.adaptive_avg_pool2d(x, 1))
    context = head.pool_red_conv(plain_norm(head.global_pooling_bn, context))
    return plain_norm(head.red_bn, local + context.expand_as(local))


def test_gradients_of_all_parameters():
    torch.manual_seed(0)
    head = DeeplabV3(sem("semantic", hidden_channels=3, out_channels=4, dilations=(1, 2)), 5, InPlaceABN).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    # so small that its gradient comes from the kernels before it
    head.red_bn.weight.data[0] = 1e-12
    x = torch.randn(3, 5, 6, 7, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(3, 4, 6, 7, dtype=torch.float64)
    names, parameters = zip(*head.named_parameters())
    ours = torch.autograd.grad(head(x), (x, *parameters), dy)
    plain = torch.autograd.grad(plain_head(head, x), (x, *parameters), dy)
    for name, mine, theirs in zip(("x", *names), ours, plain):
        assert_close(mine, theirs, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
