"""Folding norms into convolutions: same outputs, another object, any kind of norm; and what happens without oneDNN."""

import copy
from contextlib import nullcontext

import pytest
import torch
from support.micro import narrow_body as tiny_body
from support.narrow_backbones import NARROW, narrow_body, narrow_networks
from support.networks import NARROW as TINY_CHANNELS
from support.networks import randomise, tiny_config
from torch import nn
from torch.testing import assert_close

from seamseg.models.backbones.densenet import DenseModule
from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.build import build_network
from seamseg.models.folded import FoldedBlock, FoldedBoxBranch, FoldedRPNHead, FoldedSemanticHead
from seamseg.models.folding import choose_precision, fold_abn, for_inference
from seamseg.ops import fused
from seamseg.ops.fused import FusedConv2d, FusedLinear
from seamseg.ops.norm import ABN
from seamseg.structures import PackedSequence
from seamseg.training.step import compute_dtype
from seamseg.utils.errors import InputError


def network(**arguments):
    torch.manual_seed(0)
    net = build_network(tiny_config(**arguments), 2, 3).eval()
    randomise(net)
    return net


@torch.inference_mode()
def outputs(net, size=(70, 90)):
    images = PackedSequence([torch.randn(3, *size, generator=torch.Generator().manual_seed(1)) for _ in range(2)])
    features = net.encode(images)
    _, obj_logits, bbx_logits = net.score_anchors(features)
    boxes = torch.tensor([[4.0, 5, 40, 60], [10, 0, 69, 80], [0, 0, 20, 20]])
    index, classes = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 1])
    cls, bbx = net.score_boxes(features, boxes, index)
    found = [*features.levels, obj_logits, bbx_logits, cls, bbx]
    if net.roi_head.with_masks:
        rois = net.options.rois(features.levels, boxes, index, features.padded_size)
        found.append(net.roi_head.masks_of(rois, classes))
    if net.sem_head is not None:
        found.append(net.sem_head(features.levels))
    return found


def same(found, wanted, part=1e-5):
    for x, y in zip(found, wanted, strict=True):
        assert_close(x.float(), y, rtol=0, atol=part * float(y.abs().max()))


@pytest.mark.parametrize("kind", ["panoptic", "instance_seg", "detection"])
@pytest.mark.parametrize("mode", ["bn", "syncbn", "gn", "off", "syncbn+gn", "bn, plain"])
def test_same_outputs(kind, mode, monkeypatch):
    mode, _, plain = mode.partition(", ")
    if plain:
        monkeypatch.setattr(fused, "_FAILED", {"convolution", "linear"})
    with tiny_body():
        net = network(kind=kind, mode=mode, overrides=(TINY_CHANNELS,))
    same(outputs(fold_abn(net)), outputs(net))


@pytest.mark.parametrize("mode", ["bn", "syncbn+gn"])
def test_convolutions_of_the_box_branch(mode):
    net = network(mode=mode, overrides=("roi.box_convs=4", "roi.mask_refinement=points"))
    folded = fold_abn(net)
    same(outputs(folded), outputs(net))
    # the layers that refine masks have no norms
    assert torch.equal(folded.roi_head.refinement.layers[1].weight, net.roi_head.refinement.layers[1].weight)
    assert isinstance(folded.roi_head.box_conv[0], FusedConv2d) == (mode == "bn")
    assert isinstance(folded.roi_head.fc, FoldedBoxBranch) == (mode == "bn")


def test_in_float64_folding_is_exact():
    """What the two networks differ by in float32 is rounding alone."""
    net = network().double()
    for x, y in zip(outputs(fold_abn(net)), outputs(net), strict=True):
        assert x.dtype == torch.float64
        assert_close(x, y, rtol=0, atol=1e-12 * float(y.abs().max()))


@pytest.mark.parametrize("name", [*NARROW[1:], "resnext50 gn"])
def test_bodies_with_norms_before_convolutions(name):
    name, _, mode = name.partition(" ")
    with narrow_networks():
        net = network(mode=mode or "bn", overrides=narrow_body(name))
    folded = fold_abn(net)
    same(outputs(folded), outputs(net))
    kinds = {type(layer) for layer in folded.modules()}
    assert bool(kinds & {PreActivationBlock, DenseModule}) == bool(mode)
    assert mode or not any(isinstance(layer, ABN) for layer in folded.modules())
    x = torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        maps = folded.body.backbone(x)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in maps.values())


def test_a_folded_network_has_no_abn_and_can_be_copied_after_use_and_the_trained_one_is_as_before():
    net = network()
    before = copy.deepcopy(net.state_dict())
    folded = fold_abn(net)
    wanted = outputs(folded)
    same(outputs(copy.deepcopy(folded)), wanted)
    assert not any(isinstance(layer, ABN) for layer in folded.modules())
    kinds = {type(layer) for layer in folded.modules()}
    assert {FoldedBlock, FoldedRPNHead, FoldedSemanticHead, FusedLinear} <= kinds
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert any(p.requires_grad for p in net.parameters())
    assert not any(p.requires_grad for p in folded.parameters())
    own = {p.data_ptr() for p in net.parameters()}
    assert not own & {p.data_ptr() for p in folded.parameters()}


def test_a_refusing_operator_is_said_once_and_replaced(monkeypatch):
    monkeypatch.setattr(fused, "_FAILED", set())
    conv = nn.Conv2d(3, 4, 3, padding=1)
    layer = FusedConv2d(conv.weight, conv.bias, conv, "leaky_relu", 0.1)

    def refuse(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(FusedConv2d, "_one_pass", refuse)
    x = torch.randn(1, 3, 5, 5)
    with torch.inference_mode():
        wanted = nn.functional.leaky_relu(conv(x), 0.1)
        with pytest.warns(UserWarning, match="no such thing"):
            assert_close(layer(x), wanted)
        assert_close(layer(x), wanted)


def test_bf16_rounds_to_eight_bits():
    net = network()
    cpu = torch.device("cpu")
    for x, y in zip(outputs(for_inference(net, cpu, "bf16")), outputs(net), strict=True):
        error = float((x.float() - y).square().mean() / y.square().mean()) ** 0.5
        # half a unit of the last of 8 bits is 2^-9, and a few layers add theirs
        assert 2**-10 < error < 2**-6
    for prediction in for_inference(net, cpu, "bf16").predict(PackedSequence([torch.randn(3, 64, 64)])):
        assert prediction.boxes.dtype == prediction.scores.dtype == torch.float32
        assert prediction.mask_logits.dtype == torch.float32


def test_precisions():
    cpu = torch.device("cpu")
    assert choose_precision("fp32", cpu) == torch.float32
    assert choose_precision("auto", cpu) == (torch.bfloat16 if fused.bf16_is_fast(cpu) else torch.float32)
    with pytest.raises(InputError, match="needs a GPU"):
        choose_precision("fp16", cpu)
    with pytest.raises(InputError, match="auto, fp32"):
        choose_precision("int4", cpu)


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize("intel", [True, False])
def test_auto_is_the_same_for_training_and_prediction(monkeypatch, bf16, amx, intel):
    """bf16 where it is faster: oneDNN accepts it on every CPU with AVX-512, and is slow there."""
    monkeypatch.setattr(fused, "_is_intel", lambda: intel)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    cpu = torch.device("cpu")
    fast = amx or (bf16 and not intel)
    wanted = torch.bfloat16 if fast else torch.float32
    assert choose_precision("auto", cpu) == compute_dtype("auto", cpu) == wanted
    # asked for, it is still served by oneDNN in one pass
    with torch.no_grad():
        x = torch.ones(2, 4, dtype=torch.bfloat16)
        assert fused._usable("linear", x, x)


def test_auto_is_about_the_gpu_that_is_used(monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(used.append(device.index)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: used[-1] == 1)
    for index, wanted in enumerate((torch.float32, torch.bfloat16)):
        device = torch.device("cuda", index)
        assert choose_precision("auto", device) == compute_dtype("auto", device) == wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_precision("auto", device) == torch.float32
