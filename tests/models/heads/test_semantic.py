"""The semantic head: its exact algebra against the plain form, its loss against the original, losses of users."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support.golden_files import tensor
from support.networks import tiny_config, toy_batch
from support.sections import sem
from torch.nn import functional
from torch.testing import assert_close

from seamseg.models.custom import SemanticImage, custom_loss
from seamseg.models.heads import semantic
from seamseg.models.heads.semantic import (
    MiniDeepLab,
    SemanticHead,
    SemanticLoss,
    cross_entropy,
    semantic_loss,
    semantic_target,
)
from seamseg.ops.norm import ABN, InPlaceABN
from seamseg.structures import PackedSequence
from seamseg.utils.errors import SeamsegError


def plain_context(x, window):
    """Stride-1 average pool, replicate-padded back to the size of its input, with ordinary operations."""
    h, w = min(window[0], x.shape[2]), min(window[1], x.shape[3])
    y = functional.avg_pool2d(x, (h, w), stride=1)
    top, left = (h - 1) // 2, (w - 1) // 2
    return functional.pad(y, (left, w - 1 - left, top, h - 1 - top), mode="replicate")


def plain_mini_deeplab(module, x):
    context = module.conv1_glb(plain_context(x, module.pooling_size))
    x = torch.cat([module.conv1_3x3(x), module.conv1_dil(x), context], dim=1)
    return module.bn2(module.conv2(module.bn1(x)))


def plain_head(head, levels):
    maps = [plain_mini_deeplab(m, x) for m, x in zip(head.output, levels[head.min_level :])]
    size = maps[0].shape[-2:]
    maps = [functional.interpolate(x, size=size, mode="bilinear", align_corners=False) for x in maps]
    return head.conv_sem(torch.cat(maps, dim=1))


def make(norm=ABN, **keys):
    torch.manual_seed(0)
    head = SemanticHead(sem(hidden_channels=4, pooling_size=(5, 6), **keys), 6, 5, norm)
    levels = [torch.randn(2, 6, h, w) for h, w in ((23, 31), (12, 16), (6, 8), (3, 4), (2, 2))]
    return head, levels


@pytest.mark.parametrize("norm", [ABN, InPlaceABN])
@pytest.mark.parametrize("training", [False, True])
def test_head_equals_its_plain_form_with_gradients(norm, training):
    head, levels = make(norm)
    head.train(training)
    results = []
    for forward in (head, lambda x: plain_head(head, x)):
        leaves = [x.clone().requires_grad_() for x in levels]
        out = forward(leaves)
        out.square().mean().backward()
        gradients = [x.grad for x in leaves[:4]] + [p.grad.clone() for p in head.parameters()]
        head.zero_grad()
        results.append((out.detach(), gradients))
    (out, gradients), (plain_out, plain_gradients) = results
    assert_close(out, plain_out, rtol=1e-5, atol=1e-5)
    for ours, plain in zip(gradients, plain_gradients):
        assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def test_head_uses_its_levels_only():
    head, levels = make(fpn_min_level=1, fpn_levels=3)
    wanted = plain_head(head.eval(), levels)
    assert_close(head(levels), wanted, rtol=1e-5, atol=1e-5)
    head.conv_sem.register_forward_hook(lambda *_: None)  # with all of the maps, then
    assert_close(head(levels), wanted, rtol=1e-5, atol=1e-5)
    assert not [name for name in head.state_dict() if ".conv" in name and name.endswith("bias")], "as in snapshots"


@pytest.mark.parametrize("momentum", [0.1, None])
def test_branches_of_half_precision_are_added(momentum):
    """Result, gradients and running statistics are as near to those of float64 as of the joined branches."""
    torch.manual_seed(0)
    module = MiniDeepLab(sem(hidden_channels=8, pooling_size=(5, 6)), 6, partial(InPlaceABN, momentum=momentum))
    x, dy = torch.randn(2, 6, 12, 16).bfloat16(), torch.randn(2, 8, 12, 16)
    exact, joined, added = (three_steps(module, x, dy, *of) for of in ((torch.float64, False), HALF_JOINED, HALF_ADDED))
    for name, wanted in exact.items():
        errors = [
            float((found[name] - wanted).double().norm() / (wanted.double().norm() + 1e-9)) for found in (added, joined)
        ]
        assert errors[0] <= 1.3 * errors[1] + 1e-3, name
    assert added["bn1.num_batches_tracked"] == 3


HALF_JOINED, HALF_ADDED = (torch.bfloat16, False), (torch.bfloat16, True)


def three_steps(module, x, dy, dtype, is_added):
    half = dtype is torch.bfloat16
    module, leaf = deepcopy(module) if half else deepcopy(module).double(), x.to(dtype).requires_grad_()
    for _ in range(3):
        added = mock.patch.object(semantic, "is_trained_in_half", return_value=is_added)
        with torch.autocast("cpu", torch.bfloat16, enabled=half), added:
            y = module(leaf)
        (y * dy.to(y.dtype)).sum().backward()
    gradients = {f"d{name}": p.grad for name, p in module.named_parameters()}
    return {name: t.detach() for name, t in {"y": y, "dx": leaf.grad, **gradients, **module.state_dict()}.items()}


@pytest.mark.parametrize("ohem", ["0.25", "None", "1.0", "0.01"])
def test_loss_equals_the_original(ohem):
    # logits of two images of different size: padding is what the crop to the valid size takes off
    logits = [tensor("ops", f"sem_loss/logits{i}") for i in range(2)]
    targets = [tensor("ops", f"sem_loss/sem{i}") for i in range(2)]
    height, width = (max(x.shape[d] for x in logits) for d in (1, 2))
    padded = torch.stack(
        [functional.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in logits]
    ).requires_grad_()
    keys = sem(ohem=None if ohem == "None" else float(ohem))
    loss = semantic_loss(padded, (height, width), targets, partial(cross_entropy, keys=keys))
    assert_close(loss, tensor("ops", f"sem_loss/ohem_{ohem}/loss"))
    loss.backward()
    for i, (gradient, x) in enumerate(zip(padded.grad, logits)):
        wanted = tensor("ops", f"sem_loss/ohem_{ohem}/grad{i}")
        assert_close(gradient[:, : x.shape[1], : x.shape[2]], wanted, rtol=1e-4, atol=1e-7)


def test_what_a_loss_gets():
    torch.manual_seed(0)
    logits, target = torch.randn(3, 4, 5), torch.randint(0, 3, (14, 19))
    target[:4] = 255
    image = SemanticImage(logits, (16, 20), target)
    pixels = functional.cross_entropy(image.upsampled[None], target[None], ignore_index=255, reduction="none")
    assert_close(image.cross_entropy, pixels[0])


def test_target_takes_the_first_layer_that_is_not_void():
    masks = torch.tensor([[[0, 1, 2]], [[3, 3, 0]]])
    assert semantic_target(masks, torch.tensor([255, 4, 255, 7])).tolist() == [[7, 4, 255]]


def test_the_semantic_loss_is_that_of_the_labelled_images():
    logits = torch.randn(3, 2, 4, 4, requires_grad=True)
    loss_of = SemanticLoss(tiny_config())
    batch = toy_batch((16, 16), (16, 16), (16, 16), empty=(0, 1, 2))
    masks, categories = batch.masks, batch.categories
    parts = [replace(batch, masks=masks[i : i + 1], categories=categories[i : i + 1]) for i in range(3)]
    alone = [loss_of(logits[i : i + 1], (16, 16), part)["sem_loss"][0] for i, part in enumerate(parts)]
    for labelled in ([0, 1, 2], [0, 2], [1]):
        kept = [masks[i] if i in labelled else None for i in range(3)]
        loss, count = loss_of(logits, (16, 16), replace(batch, masks=PackedSequence(kept)))["sem_loss"]
        assert count == len(labelled)
        assert_close(loss, torch.stack([alone[i] for i in labelled]).mean())
    nothing, count = loss_of(logits, (16, 16), replace(batch, masks=PackedSequence([None] * 3)))["sem_loss"]
    nothing.backward()
    assert (nothing, count, logits.grad.any()) == (0, 0, False)


@pytest.mark.parametrize(("made", "found"), [(torch.zeros(2, 1), r"a tensor of \(2, 1\)"), (2.0, "float")])
def test_a_loss_of_the_user_must_be_a_scalar(made, found):
    own = SimpleNamespace(section="loss mine", module=__name__, file="mine.py", make=lambda image, keys: made)
    with pytest.raises(SeamsegError, match=rf"^loss mine \(mine\.py\): must return a scalar tensor, returned {found}$"):
        custom_loss(own, None, None)
