"""Synchronised ABN over processes (gloo): equal to one process with the batches joined, whoever is active."""

import copy
import gc
from datetime import timedelta

import pytest
import torch
from support.processes import launch
from torch import distributed, nn
from torch.testing import assert_close

from ops.test_abn_steps import spacing
from seamseg.inplace_abn import inplace_abn_sync
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.ops.norm import InPlaceABN, InPlaceABNSync, NormSequential, set_group
from seamseg.utils import distributed as sync
from seamseg.utils.distributed import active_group

CHANNELS = 3
CASES = [
    # samples on each rank, activation, shape of a sample
    ([4, 1, 2], ("leaky_relu", 0.01), (5, 4)),
    ([1, 6, 0], ("elu", 0.7), ()),
    ([2, 2, 3], ("identity", 0.01), (2, 2)),
    ([1, 0, 0], ("leaky_relu", 0.1), ()),
]


def layer_with_weights(layer_class, activation):
    layer = layer_class(CHANNELS, activation=activation[0], activation_param=activation[1]).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.8, -1.2, 0.5]))
        layer.bias.copy_(torch.tensor([0.1, -0.4, 0.3]))
    return layer


def whole_batch(counts, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    size = (sum(counts), CHANNELS, *shape)
    x = torch.randn(size, generator=generator, dtype=torch.float64) * 3 + 2
    return x, torch.randn(size, generator=generator, dtype=torch.float64)


def run_layer(layer, x, dy):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(dy)
    return y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()


def compare_with_joined(counts, activation, shape, group, ranks):
    me = ranks.index(distributed.get_rank())
    counts = counts[: len(ranks)]
    x, dy = whole_batch(counts, shape, seed=sum(counts))
    single, layer = layer_with_weights(InPlaceABN, activation), layer_with_weights(InPlaceABNSync, activation)
    set_group(layer, group)
    expected = run_layer(single, x, dy)
    start = sum(counts[:me])
    mine = slice(start, start + counts[me])
    result = run_layer(layer, x[mine], dy[mine])
    assert_close(result[0], expected[0][mine])
    assert_close(result[1], expected[1][mine])
    for local, total in zip(result[2:], expected[2:]):
        distributed.all_reduce(local, group=group)
        assert_close(local, total)
    assert_close(layer.running_mean, single.running_mean)
    assert_close(layer.running_var, single.running_var)


def check_all_ranks(rank, world):
    for counts, activation, shape in CASES:
        compare_with_joined(counts, activation, shape, None, list(range(world)))
    layer = layer_with_weights(InPlaceABNSync, ("leaky_relu", 0.01)).eval()
    if rank == 0:  # evaluation is local: the others do not come
        layer(torch.randn(2, CHANNELS, 4, 4, dtype=torch.float64, requires_grad=True)).sum().backward()


def check_inactive_ranks(rank, world):
    for inactive in range(world):
        ranks = [r for r in range(world) if r != inactive]
        for _ in range(2):
            group = active_group(rank != inactive)
            if rank == inactive:
                assert group is None
            else:
                assert distributed.get_world_size(group) == world - 1
                compare_with_joined([3, 2], ("leaky_relu", 0.01), (2, 3), group, ranks)
    assert sync._group_of.cache_info().currsize == world  # made once each
    assert active_group(True) is distributed.group.WORLD
    assert active_group(False) is None
    assert (active_group(rank == 0) is None) == (rank != 0)


def check_residual_blocks(rank, world):
    """With a projection and with a plain residual; one rank has nothing. The sum over ranks is what one process has."""

    def network(layer_class):
        torch.manual_seed(0)
        blocks = nn.Sequential(
            ResidualBlock(3, (4, 4, 8), layer_class, stride=2), ResidualBlock(8, (4, 4, 8), layer_class)
        )
        for module in blocks.modules():
            if isinstance(module, InPlaceABN):
                nn.init.uniform_(module.weight, -1, 1)
        return blocks.double()

    for count in ([2, 0, 1], [0, 0, 2], [1, 3, 2]):
        single, parallel = network(InPlaceABN), network(InPlaceABNSync)
        x = torch.randn(sum(count), 3, 7, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        start = sum(count[:rank])
        mine = slice(start, start + count[rank])
        inputs = [x.clone().requires_grad_(), x[mine].clone().requires_grad_()]
        for _ in range(2):
            whole, part = (net(t) for net, t in zip((single, parallel), inputs))
            assert_close(part, whole[mine])
            for y in (whole, part):
                y.square().sum().backward()
        assert_close(inputs[1].grad, inputs[0].grad[mine], rtol=1e-6, atol=1e-8)
        for one, many in zip(single.parameters(), parallel.parameters()):
            distributed.all_reduce(many.grad)
            assert_close(many.grad, one.grad, rtol=1e-6, atol=1e-8)
        for one, many in zip(single.buffers(), parallel.buffers()):
            assert_close(many, one)


def check_scales_too_small(rank, world):
    """Gradients of scales that go through the kernel, here all, add up to those of one process."""
    counts = [3, 1, 0]
    torch.manual_seed(0)
    single = NormSequential(nn.Conv2d(2, CHANNELS, 3, bias=False), InPlaceABN(CHANNELS)).double()
    parallel = NormSequential(copy.deepcopy(single[0]), layer_with_weights(InPlaceABNSync, ("leaky_relu", 0.01)))
    parallel.load_state_dict(single.state_dict())
    x = torch.randn(sum(counts), 2, 7, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dy = torch.randn(sum(counts), CHANNELS, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    start = sum(counts[:rank])
    mine = slice(start, start + counts[rank])
    single(x).backward(dy + 0.3)
    with spacing(torch.inf):
        parallel(x[mine]).backward(dy[mine] + 0.3)
    distributed.all_reduce(parallel[1].weight.grad)
    assert_close(parallel[1].weight.grad, single[1].weight.grad)


def check_residual_without_gradients(rank, world):
    """Ranks with and without gradients make the same collective calls forward."""
    torch.manual_seed(0)
    block = ResidualBlock(3, (4, 4, 8), InPlaceABNSync, stride=2).double()
    torch.manual_seed(0)
    expected = ResidualBlock(3, (4, 4, 8), InPlaceABN, stride=2).double()
    x = torch.randn(world, 3, 7, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.set_grad_enabled(rank > 0):
        assert_close(block(x[rank : rank + 1]), expected(x)[rank : rank + 1])


def check_function_without_group(rank, world):
    x, dy = whole_batch([2] * world, (3, 4), seed=3)
    single, layer = (layer_with_weights(InPlaceABN, ("elu", 0.7)) for _ in "12")
    expected = run_layer(single, x, dy)
    mine = slice(2 * rank, 2 * rank + 2)
    for running in ((layer.running_mean, layer.running_var), (None, None)):
        leaf = x[mine].clone().requires_grad_()
        y = inplace_abn_sync(leaf, layer.weight, layer.bias, *running, activation="elu", activation_param=0.7)
        y.backward(dy[mine])
        assert_close(y.detach(), expected[0][mine])
        assert_close(leaf.grad, expected[1][mine])
    for name in ("running_mean", "running_var"):
        assert_close(getattr(layer, name), getattr(single, name))
    if rank == 0:  # the others do not come
        inplace_abn_sync(x[mine], None, None, layer.running_mean, layer.running_var, training=False)


def worker(rank, join, world, file):
    for generation in range(2):
        distributed.init_process_group(
            "gloo", init_method=f"file://{file}{generation}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
        # the second world must not be given groups of the first
        check_inactive_ranks(rank, world)
        if generation == 0:
            check_function_without_group(rank, world)
            check_all_ranks(rank, world)
            check_residual_blocks(rank, world)
            check_scales_too_small(rank, world)
            check_residual_without_gradients(rank, world)
        distributed.barrier()
        sync._group_of.cache_clear()
        distributed.destroy_process_group()
    gc.collect()


def test_a_group_of_one_process_changes_nothing():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    layers = [layer_with_weights(InPlaceABN, ("leaky_relu", 0.01)) for _ in "12"]
    layers[1]._group = lambda: distributed.group.WORLD
    try:
        found = [(*run_layer(layer, *whole_batch([5], (2, 3), 0)), *layer.buffers()) for layer in layers]
    finally:
        distributed.destroy_process_group()
    assert_close(*found)


@pytest.mark.distributed
def test_processes(tmp_path):
    launch(worker, 3, 3, tmp_path / "rendezvous")
