"""Argmax and loss of upsampled logits: goldens, plain forms, gradients, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from seamseg.ops import upsample
from seamseg.ops.upsample import upsample_argmax, upsample_ohem_loss

from . import oracles
from .golden import golden


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


sizes = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 7))


@given(
    sizes, st.tuples(st.integers(1, 20), st.integers(1, 20)), st.integers(0, 5), st.integers(0, 5), st.integers(0, 1000)
)
def test_argmax_against_plain(shape, padded, cut_y, cut_x, seed):
    valid = max(1, padded[0] - cut_y), max(1, padded[1] - cut_x)
    # few distinct values, smooth areas: ties and pixels whose neighbours agree
    logits = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed)).double()
    scores = oracles.upsample(logits, padded, valid)
    result = upsample_argmax(logits, padded, valid)
    assert result.shape == valid
    chosen = scores.gather(0, result[None])[0]
    assert_close(chosen, scores.max(0).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [1 << 20, 50])
def test_argmax_of_scenes(monkeypatch, chunk):
    monkeypatch.setattr(upsample, "_CPU_CHUNK", chunk)
    coarse = torch.randn(1, 6, 4, 6, generator=torch.Generator().manual_seed(2))
    logits = torch.nn.functional.interpolate(coarse, size=(24, 37), mode="bilinear")[0]
    for padded in ((96, 148), (100, 131), (24, 37), (10, 20)):
        valid = padded[0] - 3, padded[1] - 5
        expected = oracles.upsample(logits, padded, valid).argmax(0)
        for x in (logits, logits.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
            assert (upsample_argmax(x, padded, valid) != expected).sum() <= 1


@given(
    sizes,
    st.tuples(st.integers(1, 15), st.integers(1, 15)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([None, 0.1, 0.5, 1.0]),
    st.integers(0, 1000),
)
def test_loss_against_plain(shape, padded, cut_y, cut_x, ohem, seed):
    valid = max(1, padded[0] - cut_y), max(1, padded[1] - cut_x)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, requires_grad=True)
    target = torch.randint(0, shape[0], valid, generator=generator)
    target[torch.rand(valid, generator=generator) < 0.2] = 255
    loss = upsample_ohem_loss(logits, padded, valid, target, ohem)
    expected = oracles.ohem_loss(oracles.upsample(logits, padded, valid), target, ohem)
    assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(out, logits)[0] for out in (loss, expected)]
    if shape[0] > 1:  # with one class all losses are 0 and so are the gradients
        assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_loss_by_chunks(monkeypatch):
    logits = torch.randn(4, 13, 17, requires_grad=True)
    target = torch.randint(0, 4, (50, 63))
    whole = torch.autograd.grad(upsample_ohem_loss(logits, (52, 68), (50, 63), target, 0.3), logits)[0]
    monkeypatch.setattr(upsample, "_CPU_CHUNK", 1)
    by_rows = torch.autograd.grad(upsample_ohem_loss(logits, (52, 68), (50, 63), target, 0.3), logits)[0]
    assert_close(whole, by_rows, rtol=1e-5, atol=1e-8)


def test_loss_gradcheck():
    logits = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 3, (7, 9))
    target[0] = 255
    assert torch.autograd.gradcheck(lambda x: upsample_ohem_loss(x, (8, 9), (7, 9), target, 0.5), logits, atol=1e-4)


def test_loss_of_void_only():
    logits = torch.randn(3, 3, 4, requires_grad=True)
    loss = upsample_ohem_loss(logits, (6, 8), (6, 8), torch.full((6, 8), 255), 0.25)
    loss.backward()
    assert loss == 0
    assert logits.grad.abs().sum() == 0


def test_half_precision_logits():
    logits = torch.randn(3, 4, 4).bfloat16().requires_grad_()
    target = torch.randint(0, 3, (8, 8))
    loss = upsample_ohem_loss(logits, (8, 8), (8, 8), target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert logits.grad.dtype == torch.bfloat16
    assert upsample_argmax(logits, (8, 8), (8, 8)).shape == (8, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, t: upsample_argmax(x[0], (8, 8), (8, 8)), "logits must be a floating C x h x w"),
        (lambda x, t: upsample_argmax(x, (8, 8), (9, 8)), r"valid size \(9, 8\) must be positive and inside"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (7, 8), t), "target must be int64 of shape 7x8, got int64 tensor"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (8, 8), t.int()), "target must be int64"),
        (lambda x, t: upsample_ohem_loss(x, (8, 8), (8, 8), t, 0.0), "ohem must be in"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.rand(2, 4, 4), torch.zeros(8, 8, dtype=torch.long))
