"""Argmax and loss of upsampled logits: goldens, plain forms, gradients, failures."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.golden_files import golden
from support.op_contract import same_with_threads
from torch.nn import functional
from torch.testing import assert_close

from seamseg.ops.reference import upsample as plain
from seamseg.ops.upsample import (
    upsample_argmax,
    upsample_cross_entropy,
    upsample_fusion,
    upsample_ohem_loss,
)


@pytest.mark.parametrize(("image", "valid"), [(0, (30, 36)), (1, (32, 21))])
def test_argmax_golden(image, valid):
    expected = golden(f"sem_pack/out{image}")
    assert_close(oracles.upsample(golden("sem_pack/x")[image], (32, 36), valid), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(upsample_argmax(golden("sem_pack/x")[image], (32, 36), valid), expected.argmax(0))


@pytest.mark.parametrize("ohem", [0.25, None, 1.0, 0.01])
def test_loss_golden(ohem):
    logits = [golden(f"sem_loss/logits{i}").requires_grad_() for i in (0, 1)]
    targets = [golden(f"sem_loss/sem{i}") for i in (0, 1)]
    losses = [upsample_ohem_loss(x, t.shape, t.shape, t, ohem) for x, t in zip(logits, targets)]
    loss = torch.stack(losses).mean()
    loss.backward()
    assert_close(loss, golden(f"sem_loss/ohem_{ohem}/loss"), rtol=1e-6, atol=0)
    for i, x in enumerate(logits):
        assert_close(x.grad, golden(f"sem_loss/ohem_{ohem}/grad{i}"), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("ohem", "name"), [(None, "none"), (0.2, "ohem0.25"), (0.01, "ohem0.01")])
def test_selection_golden(ohem, name):
    # Losses given directly: two classes whose cross-entropy is the stored value. The original's helper for one dense
    # tensor, stored here, rounds .25 * 15 down to 3 pixels; its loss of a batch (test_loss_golden) rounds up.
    wanted = golden("ohem_loss/x").double()
    logits = torch.stack((torch.zeros_like(wanted), torch.log(wanted.exp() - 1)), 1)
    target = torch.zeros(wanted.shape[1:], dtype=torch.long)
    losses = [upsample_ohem_loss(x, target.shape, target.shape, target, ohem) for x in logits]
    assert_close(torch.stack(losses).mean().float(), golden(f"ohem_loss/{name}"), rtol=1e-5, atol=0)


def scene(classes, height, width, seed=2):
    coarse = torch.randn(1, classes, 4, 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")[0]


def layouts(logits):
    last, transposed = logits.permute(1, 2, 0).contiguous(), logits.transpose(1, 2).contiguous()
    return logits, last.permute(2, 0, 1), logits.repeat_interleave(2, 2)[..., ::2], transposed.transpose(1, 2)


@pytest.mark.parametrize("chunk", [1 << 20, 50])
def test_argmax_of_scenes(monkeypatch, chunk):
    monkeypatch.setattr(plain, "_CPU_CHUNK", chunk)
    logits = scene(6, 24, 37)
    for padded in ((96, 148), (100, 131), (24, 37), (10, 20)):
        valid = padded[0] - 3, padded[1] - 5
        expected = oracles.upsample(logits, padded, valid).argmax(0)
        for x in layouts(logits):
            assert (upsample_argmax(x, padded, valid) != expected).sum() <= 1
            assert (plain.upsample_argmax(x, *padded, *valid) != expected).sum() <= 1


big_sizes = st.tuples(st.integers(1, 21), st.integers(1, 40), st.integers(1, 90))
KINDS = ("noise", "scene", "ties", "constant", "nan", "infinite")


def logits_of(kind, shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=generator)
    if kind == "scene":
        noise = scene(*shape, seed)
    if kind == "ties":
        noise = torch.randint(-1, 2, shape, generator=generator).float()
    if kind == "constant":
        noise = torch.zeros(shape)
    if kind in ("nan", "infinite"):
        rare = torch.rand(shape, generator=generator) < 0.05
        noise[rare] = torch.nan if kind == "nan" else torch.inf * noise[rare].sign()
    return noise.to(dtype)


@settings(max_examples=200)
@given(
    big_sizes,
    st.tuples(st.integers(1, 130), st.integers(1, 300)),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.sampled_from(KINDS),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_argmax_kernel_equals_plain(shape, padded, cut, kind, dtype, layout, seed):
    valid = max(1, padded[0] - cut[0]), max(1, padded[1] - cut[1])
    logits = layouts(logits_of(kind, shape, dtype, seed))[layout]
    assert torch.equal(upsample_argmax(logits, padded, valid), plain.upsample_argmax(logits, *padded, *valid))


def both_losses(logits, padded, target, ohem):
    leaf = logits.detach().requires_grad_()
    loss = upsample_ohem_loss(leaf, padded, target.shape, target, ohem)
    gradient = torch.autograd.grad(loss, leaf)[0]
    ohem = 1.0 if ohem is None else ohem
    expected, normaliser = plain.upsample_ohem_loss(logits, *padded, target, ohem)
    one = torch.ones((), dtype=expected.dtype)
    wanted = plain.upsample_ohem_loss_backward(one, logits, *padded, target, normaliser, ohem)
    return loss.detach(), gradient, expected, wanted.to(logits.dtype)


def test_loss_of_large_logits():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 8, 8, generator=generator) * 1000  # exponentials of single scores overflow and vanish
    target = torch.randint(0, 5, (32, 32), generator=generator)
    loss, gradient, expected, wanted = both_losses(logits, (32, 32), target, None)
    assert_close(loss, expected, rtol=1e-6, atol=0)
    # the normaliser itself, some thousands, is rounded
    assert_close(gradient, wanted, rtol=0, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("ohem", [0.2, 0.25, 0.6])
def test_equal_losses(ohem):
    """Any of the equal pixels may count; as many of them as fit do."""
    logits = torch.zeros(4, 8, 8)
    logits[1, :4] = 3
    target = torch.zeros(8, 8, dtype=torch.long)
    target[:, :2] = 255
    loss, gradient, expected, wanted = both_losses(logits, (8, 8), target, ohem)
    assert_close(loss, expected, rtol=1e-6, atol=0)
    for half in (slice(0, 4), slice(4, 8)):
        assert_close(gradient[:, half].sum((1, 2)), wanted[:, half].sum((1, 2)), rtol=1e-5, atol=1e-8)


def test_loss_of_nan_and_of_void_only():
    logits = torch.randn(3, 4, 4)
    loss, gradient, *_ = both_losses(logits, (8, 8), torch.full((8, 8), 255), 0.25)
    assert (loss, gradient.abs().sum()) == (0, 0)
    logits[1, 2, 2] = torch.nan
    loss, gradient, *_ = both_losses(logits, (8, 8), torch.zeros(8, 8, dtype=torch.long), 0.25)
    assert loss.isnan()
    assert gradient.isnan().any()


def test_loss_is_the_same_for_any_number_of_threads_and_chunks(monkeypatch):
    logits, target = torch.randn(7, 65, 70), torch.randint(0, 7, (260, 280))
    whole = both_losses(logits, (260, 280), target, 0.3)
    same_with_threads(lambda: both_losses(logits, (260, 280), target, 0.3)[:2])
    monkeypatch.setattr(plain, "_CPU_CHUNK", 1)
    assert_close(both_losses(logits, (260, 280), target, 0.3), whole, rtol=1e-5, atol=1e-8)


def test_loss_gradcheck():
    logits = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 3, (7, 9))
    target[0] = 255
    assert torch.autograd.gradcheck(lambda x: upsample_ohem_loss(x, (8, 9), (7, 9), target, 0.5), logits, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, t: upsample_argmax(x[0], (8, 8), (8, 8)), "logits must be a floating C x h x w"),
        (lambda x, t: upsample_argmax(x, (8, 8), (9, 8)), r"valid size \(9, 8\) must be positive and inside"),
        (lambda x, t: upsample_argmax(x, (8, 8), (0, 8)), r"valid size \(0, 8\) must be positive and inside"),
        (lambda x, t: upsample_argmax(x, (8, 8), (8, -1)), r"valid size \(8, -1\) must be positive and inside"),
        (lambda x, t: upsample_fusion([x, x.long()], (8, 8)), "logits must be a floating C x h x w"),
        (lambda x, t: upsample_fusion([x, x[:1]], (8, 8)), "views with the same classes on one device"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (7, 8), t), "target must be int64 of shape 7x8, got int64 tensor"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (8, 8), t.int()), "target must be int64"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (8, 8), t, 0.0), "ohem must be in"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (8, 8), t, -0.5), "ohem must be in"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.rand(2, 4, 4), torch.zeros(8, 8, dtype=torch.long))


@pytest.mark.parametrize("wrong", [-1, 2, 254, 256, -(2**62)])
def test_classes_that_do_not_exist(wrong):
    logits, target = torch.rand(2, 4, 4), torch.zeros(8, 8, dtype=torch.long)
    target[5, 3] = wrong
    words = r"upsample_ohem_loss: target must hold classes 0 to 1, or 255 for void"
    with pytest.raises(RuntimeError, match=words):
        upsample_ohem_loss(logits, (8, 8), (8, 8), target)
    with pytest.raises(ValueError, match=words):
        plain.upsample_ohem_loss(logits, 8, 8, target, 1.0)


def fused_plainly(logits, size, mode):
    """Class and probability of each pixel, from the probabilities of all views at once."""
    shares = torch.stack([oracles.upsample(x, size, size).softmax(0) for x in logits])
    if mode == "mean":
        return shares.mean(0).max(0)
    surest, own = shares.max(1)
    if mode == "max":
        view = surest.argmax(0, keepdim=True)
        return surest.gather(0, view)[0], own.gather(0, view)[0]
    votes = functional.one_hot(own, shares.shape[1]).sum(0)
    winner = votes.argmax(-1)
    agreeing = own == winner
    return (surest * agreeing).sum(0) / agreeing.sum(0), winner


@pytest.mark.parametrize("mode", ["mean", "max", "voting"])
@pytest.mark.parametrize("views", [1, 2, 5])
def test_fusion(mode, views, monkeypatch):
    monkeypatch.setattr(plain, "_CPU_ROWS", 7)
    torch.manual_seed(views)
    logits = [torch.randn(4, 3 + i, 6 - i, dtype=torch.float64) for i in range(views)]
    classes, scores = upsample_fusion(logits, (19, 23), mode)
    expected_scores, expected = fused_plainly(logits, (19, 23), mode)
    assert torch.equal(classes, expected)
    assert_close(scores, expected_scores, rtol=1e-5, atol=1e-6)


def test_fusion_ties():
    # two views of one pixel each vote for another class, with equal certainty
    first, second = torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.0, 2.0, 0.0])
    views = [x[:, None, None] for x in (first, second)]
    assert upsample_fusion(views, (1, 1), "voting")[0].item() == 1, "the lowest class"
    assert upsample_fusion(views, (1, 1), "max")[0].item() == 2, "the first view"
    with pytest.raises(ValueError, match="mode must be one of mean, max, voting, got 'median'"):
        upsample_fusion(views, (1, 1), "median")


def test_cross_entropy(monkeypatch):
    monkeypatch.setattr(plain, "_CPU_ROWS", 5)
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 3, (17, 19))
    target[3:6, 2:] = 255
    losses = upsample_cross_entropy(logits, (20, 20), (17, 19), target)
    scores = oracles.upsample(logits, (20, 20), (17, 19))
    expected = functional.cross_entropy(scores[None], target[None], ignore_index=255, reduction="none")[0]
    assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    weight = torch.rand(17, 19, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), logits)[0] for x in (losses, expected))
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(upsample_cross_entropy(logits, (20, 20), (17, 19), target), losses)
    with pytest.raises(ValueError, match="target must be int64 of shape 17x19"):
        upsample_cross_entropy(logits, (20, 20), (17, 19), target[1:])
