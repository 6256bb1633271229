"""Outputs of norms that the backward pass computes again: what is kept, and that gradients are the same."""

import copy

import pytest
import torch
from support.narrow_backbones import build_narrow
from torch import nn

from seamseg.models.backbones import FPN, FPNBody, norm_factory
from seamseg.ops.abn import Norm, apply_plain_norm
from seamseg.ops.abn_recompute import recomputed
from seamseg.ops.norm import InPlaceABN


def test_the_output_of_a_norm_is_not_kept_and_gradients_are_the_same():
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    plain = nn.ModuleList([InPlaceABN(4), nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 3)])
    again = copy.deepcopy(plain)
    runs = []

    def count(z):
        runs.append(z)
        return again[0](z)

    y = plain[0](x)
    wanted = plain[1](y).sum() + plain[2](y).square().sum()
    with recomputed(count, lambda: x) as z:
        found = again[1](z).sum() + again[2](z).square().sum()
    del z
    assert len(runs) == 1
    gradients = torch.autograd.grad(found, [x, *again.parameters()], retain_graph=True)
    assert len(runs) == 2, "one recomputation serves all uses"
    repeated = torch.autograd.grad(found, [x, *again.parameters()])
    expected = torch.autograd.grad(wanted, [x, *plain.parameters()])
    for first, second, other in zip(gradients, repeated, expected):
        assert torch.equal(first, other)
        assert torch.equal(second, other)
    assert all(torch.equal(a, b) for a, b in zip(again.buffers(), plain.buffers()))


@pytest.mark.parametrize("tracked", [True, False])
def test_a_plain_norm_counts_a_batch_once(tracked):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    mean, var = (torch.zeros(4), torch.ones(4)) if tracked else (None, None)
    weight = nn.Parameter(torch.randn(3, 4, 1, 1))

    def abn(x, *averages):
        return apply_plain_norm(x, None, None, Norm(*averages, True, 0.1, 1e-5, "leaky_relu", 0.01, None))

    wanted = nn.functional.conv2d(abn(x, None, None), weight).square().sum()
    with recomputed(lambda z: abn(z, mean, var), lambda: x) as y:
        found = nn.functional.conv2d(y, weight).square().sum()
    del y
    assert torch.equal(torch.autograd.grad(found, weight)[0], torch.autograd.grad(wanted, weight)[0])
    if tracked:
        assert torch.allclose(mean, 0.1 * x.mean((0, 2, 3)), atol=1e-6)
        assert torch.allclose(var, 0.9 + 0.1 * x.transpose(0, 1).flatten(1).var(1), atol=1e-6)


@pytest.mark.parametrize("name", ["resnext50", "wider_resnet16_a2", "densenet121", "resnet50"])
def test_a_body_trains_the_same_with_and_without_recomputation(name, monkeypatch):
    results = []
    for on in (True, False):
        torch.manual_seed(0)
        backbone = build_narrow(name, norm_factory("inplace"))
        inputs = ["mod3", "mod4", "mod5"]
        body = FPNBody(backbone, FPN([backbone.out_channels[i] for i in inputs], 8, 1, InPlaceABN), inputs)
        if not on:
            monkeypatch.setattr("seamseg.ops.abn_recompute._can_recompute", lambda: False)
        torch.manual_seed(1)
        levels = body(torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64))
        sum(level.square().sum() for level in levels).backward()
        results.append([*(p.grad for p in body.parameters() if p.grad is not None), *body.buffers()])
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)
