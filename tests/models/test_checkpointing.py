"""`checkpoint_body`: less is kept, and nothing else changes, not a bit of it."""

import copy
from unittest import mock

import pytest
import torch
from support.networks import narrow_module, toy_batch
from support.op_contract import keeping, place
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from seamseg.models.backbones import base
from seamseg.models.backbones.base import FPN
from seamseg.ops.abn_recompute import checkpointed
from seamseg.ops.norm import ABN, InPlaceABN

YES = "general.checkpoint_body=yes"
DROPOUT = 'body.body_params={"dropout": 0.3}'


def train(module, batch, dtype=None, steps=2):
    """Losses, gradients and statistics of some steps, and the bytes that the last one keeps."""
    torch.manual_seed(1)
    own, losses = {place(t) for t in (*module.parameters(), *module.buffers())}, []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            means, kept = keeping(lambda: module(batch).means)
        size = sum(t.untyped_storage().nbytes() for where, t in kept.items() if where not in own)
        total = sum(means.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.detach())
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    state = [*losses, *gradients, *module.state_dict().values()]
    return state, size


@pytest.mark.parametrize(
    ("mode", "overrides", "num_frozen", "dtype"),
    [
        ("bn", (), 2, None),
        ("bn", (DROPOUT,), 0, None),
        ("bn", (), 2, torch.bfloat16),
        ("gn", (DROPOUT,), 0, torch.bfloat16),
        ("off", (), 1, None),
    ],
)
def test_same_bits_and_less_memory(mode, overrides, num_frozen, dtype):
    plain, module = (narrow_module(*overrides, *more, mode=mode, num_frozen=num_frozen) for more in ((), (YES,)))
    assert list(plain.state_dict()) == list(module.state_dict())
    batch = toy_batch((64, 96), (80, 64))
    (wanted, much), (state, less) = (train(m, batch, dtype) for m in (plain, module))
    assert len(state) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(state, wanted))
    # frozen stages keep nothing in either
    assert less < (0.95 if num_frozen else 0.8) * much
    if mode == "bn":
        assert module.net.body.backbone.mod2.block1.convs.bn1.num_batches_tracked == 2


@pytest.mark.parametrize("layer", [ABN, InPlaceABN])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_move_once_however_often_the_graph_is_run_backwards(layer, momentum):
    torch.manual_seed(0)
    part = nn.Sequential(nn.Conv2d(3, 4, 3), layer(4, momentum=momentum), nn.Conv2d(4, 4, 3), layer(4))
    twin = copy.deepcopy(part)
    x = torch.randn(2, 3, 9, 9)
    for _ in range(2):
        loss, wanted = checkpointed(part, x).square().mean(), twin(x).square().mean()
        for _ in range(2):
            loss.backward(retain_graph=True)
            wanted.backward(retain_graph=True)
    assert part[1].num_batches_tracked == 2
    for (name, a), b in zip(part.state_dict().items(), twin.state_dict().values()):
        assert torch.equal(a, b), name
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(part.parameters(), twin.parameters()))


def test_a_part_that_the_compiler_gives_up_counts_a_batch_once():
    torch._dynamo.reset()

    class Broken(nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y

    torch.manual_seed(0)
    part = Broken(nn.Conv2d(3, 4, 3), InPlaceABN(4), nn.Conv2d(4, 4, 3))
    twin, x = copy.deepcopy(part), torch.randn(2, 3, 9, 9)
    compiled = torch.compile(lambda z: checkpointed(part, z).square().mean(), backend="aot_eager")
    for run, net in ((compiled, part), (lambda z: twin(z).square().mean(), twin)):
        run(x).backward()
        assert net[1].num_batches_tracked == 1
    assert all(torch.allclose(a, b) for a, b in zip(part.state_dict().values(), twin.state_dict().values()))
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(part.parameters(), twin.parameters()))


def test_the_finest_sum_of_a_pyramid_in_half_precision():
    """It is not kept, and nothing else changes; the convolution after it runs once."""
    torch.manual_seed(0)
    pyramid = FPN((4, 8), 8, 1, InPlaceABN)
    maps = [torch.randn(2, 4, 16, 24).bfloat16(), torch.randn(2, 8, 8, 12).bfloat16()]
    found = []
    for again in (True, False):
        module, leaves = copy.deepcopy(pyramid), [x.clone().requires_grad_() for x in maps]
        made_again = mock.patch.object(base, "is_trained_in_half", return_value=again)
        with made_again, FlopCounterMode(display=False) as counter:
            with torch.autocast("cpu", torch.bfloat16):
                levels, kept = keeping(lambda net=module, xs=leaves: net(xs))
            torch.stack([y.float().square().mean() for y in levels]).sum().backward()
        gradients = [t.grad for t in (*leaves, *module.parameters())]
        size = sum(t.untyped_storage().nbytes() for t in kept.values())
        found.append(([*levels, *gradients, *module.buffers()], size, counter.get_total_flops()))
    (tensors, size, flops), (wanted, whole, once) = found
    assert all(map(torch.equal, tensors, wanted))
    assert whole - size >= 2 * 8 * 16 * 24 * 2
    assert flops == once
