"""The network on a CUDA device: the same as on the CPU."""

import copy

import pytest
import torch
from support.networks import golden_image, tiny_config, toy_batch
from torch.testing import assert_close

from seamseg.fusion import fuse
from seamseg.models.build import build_training_module

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def exact_convolutions():
    """Convolutions in full float32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_golden_picture(golden_net, cityscapes):
    images = type(toy_batch((8, 8)).images)([golden_image("flower", cityscapes)])
    (wanted,) = golden_net.predict(images)
    (found,) = copy.deepcopy(golden_net).cuda().predict(images.to("cuda"))
    assert found.classes.tolist() == wanted.classes.tolist()
    assert_close(found.boxes.cpu(), wanted.boxes, rtol=0, atol=0.05)
    assert (found.semantic.cpu() == wanted.semantic).float().mean() > 0.999
    maps = [fuse(p, 11) for p in (found, wanted)]
    assert maps[0].categories == maps[1].categories
    assert (maps[0].ids == maps[1].ids).mean() > 0.999


@pytest.mark.parametrize("mode", ["bn", "syncbn", "gn"])
def test_training_step(mode):
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        module = build_training_module(tiny_config(mode=mode), 2, 3).to(device)
        batch = toy_batch((64, 96), (80, 64), empty=(1,), crowd=(0,)).to(device)
        torch.manual_seed(1)
        losses = module(batch).means
        sum(losses.values()).backward()
        results.append({name: loss.detach().cpu() for name, loss in losses.items()})
        assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    for name, wanted in results[0].items():
        assert_close(results[1][name], wanted, rtol=1e-2, atol=1e-3, msg=name)
