"""`[general] compile`: same numbers, one graph for all sizes, and an uncompiled run where there is no compiler."""

from unittest import mock

import pytest
import torch
from support.networks import tiny_config, toy_batch
from support.op_contract import keeping, place
from torch._dynamo.utils import counters

from seamseg.models.backbones import resnet
from seamseg.models.build import build_training_module
from seamseg.structures import PackedSequence
from seamseg.training.logging.reporter import TextLog
from seamseg.training.run import compile_network
from seamseg.utils.distributed import World

SIZES = ((256, 288), (288, 256), (256, 256))
NARROW = {"resnet18": resnet.Architecture((1, 1, 1, 1), bottleneck=False)}


def build(*overrides):
    torch.manual_seed(0)
    with mock.patch.dict(resnet.RESNETS, NARROW):
        return build_training_module(tiny_config(num_frozen=1, overrides=overrides), 2, 3).double()


def in_double(batch):
    """Compute in float64: in float32 the gradient of a norm has fewer than four exact digits."""
    fields = {name: getattr(batch, name) for name in ("masks", "categories", "iscrowd", "boxes", "ids")}
    images = PackedSequence([x.double() for x in batch.images])
    return type(batch)(images=images, original_sizes=batch.original_sizes, **fields)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "checkpoint"), [("aot_eager", "no"), ("aot_eager", "yes"), ("inductor", "no")])
def test_same_numbers_and_one_graph_for_all_sizes(backend, checkpoint):
    torch._dynamo.reset()
    counters.clear()
    plain, module = (build(f"general.checkpoint_body={checkpoint}") for _ in range(2))
    keys = list(module.state_dict())
    assert compile_network(module.net, World(), TextLog(None, console=False).warning, backend)
    assert list(module.state_dict()) == keys
    graphs, sizes = [], {}
    for size in SIZES:
        batch = in_double(toy_batch(size))
        totals = []
        for m in (plain, module):
            m.zero_grad()
            torch.manual_seed(1)
            losses, kept = keeping(lambda m=m, batch=batch: m(batch).means)
            own = {place(t) for t in (*m.parameters(), *m.buffers())}
            sizes[m] = sum(t.untyped_storage().nbytes() for where, t in kept.items() if where not in own)
            totals.append(sum(losses.values()))
            totals[-1].backward()
        torch.testing.assert_close(totals[1], totals[0], rtol=1e-9, atol=0)
        for (name, a), b in zip(plain.named_parameters(), module.parameters()):
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-6, atol=1e-9, msg=name)
        for (name, a), b in zip(plain.named_buffers(), module.named_buffers()):
            torch.testing.assert_close(b[1].to(a.dtype), a, rtol=1e-9, atol=1e-12, msg=name)
        graphs.append(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"]
    if torch.__version__ >= (2, 15):  # 2.11 keeps what it could compute again
        assert sizes[module] < 1.05 * sizes[plain], "no more is kept for the backward pass"
    assert graphs[0] == graphs[-1], "other sizes, the same graphs"
    plain.eval(), module.eval()
    for size in SIZES[:2]:
        images = in_double(toy_batch(size)).images
        wanted, got = (m.net.predict(images)[0] for m in (plain, module))
        torch.testing.assert_close(got.boxes, wanted.boxes)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[-2]


def test_without_a_compiler_the_run_continues_uncompiled():
    module, said = build(), []
    with mock.patch("torch.compile", side_effect=RuntimeError("no C++ compiler was found\nand many lines more")):
        assert not compile_network(module.net, World(), said.append)
    assert said == [
        "[general] compile: the network runs uncompiled, torch.compile does not work here: no C++ compiler was found"
    ]
    assert not module.net.compiled
    assert sum(module(in_double(toy_batch((64, 96)))).means.values()).isfinite()
