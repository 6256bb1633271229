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
from torch.nn.utils import prune
from torch.testing import assert_close

from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.build import build_network
from seamseg.models.folding import FoldedBlock, choose_precision, fold_abn, for_inference
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.rpn import RPNHead
from seamseg.ops import fused
from seamseg.ops.fused import FusedConv2d, FusedLinear, compute_dtype, use_winograd
from seamseg.ops.norm import ABN, InPlaceABN, InPlaceABNSync
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError


def network(**arguments):
    torch.manual_seed(0)
    net = build_network(tiny_config(**arguments), 2, 3).eval()
    randomise(net)
    return net


@torch.inference_mode()
def outputs(net, size=(70, 90)):
    images = PackedSequence([torch.randn(3, *size, generator=torch.Generator().manual_seed(1)) for _ in range(2)])
    dense = net.dense(net.padded(images)[0])
    boxes = torch.tensor([[4.0, 5, 40, 60], [10, 0, 69, 80], [0, 0, 20, 20]])
    rois = net.options.rois(dense.levels, boxes, torch.tensor([0, 1, 1]), size)
    masks = [net.roi_head.conv(rois)] if net.roi_head.with_masks else []
    semantic = [] if net.sem_head is None else [dense.semantic_logits]
    return [*dense.levels, dense.obj_logits, dense.bbx_logits, *net.roi_head.boxes(rois), *masks, *semantic]


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
    # what differs is rounding alone
    net.double()
    for x, y in zip(outputs(fold_abn(net)), outputs(net), strict=True):
        assert x.dtype == torch.float64
        assert_close(x, y, rtol=0, atol=1e-12 * float(y.abs().max()))


class Lora(nn.Conv2d):
    """A class of its own: also with the parameters of its base."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.down = nn.Conv2d(self.in_channels, 2, 1, stride=self.stride, bias=False)
        self.up = nn.Conv2d(2, self.out_channels, 1)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class Scaled(InPlaceABN):
    def forward(self, x):
        return 3 * super().forward(x)


class Gated(ResidualBlock):
    def forward(self, x):
        y = self.convs(x)
        return x + y * y.mean((2, 3), keepdim=True).sigmoid()


def with_hook(layer, kind):
    if kind == "pre":
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    elif kind == "forward":
        layer.register_forward_hook(lambda module, inputs, y: y * 2)
    elif kind == "own":
        plain = layer.forward
        layer.forward = lambda x: plain(x) * 2
    return layer


def replaced(module, name, part):
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, part)
    return module


def appended(sequence, *layers):
    return sequence.extend(layers)


LAYERS = {
    "padded": lambda: nn.ConvTranspose2d(8, 8, 2, stride=2, padding=1),
    "tiling": lambda: nn.ConvTranspose2d(8, 8, 3, stride=3),
    "circular": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
    "groups": lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
    "lora": lambda: Lora(8, 8, 1),
    "pruned": lambda: prune.random_unstructured(nn.Conv2d(8, 8, 1), "weight", 0.5),
    "rows": lambda: nn.Sequential(nn.Flatten(), nn.Linear(800, 72), InPlaceABN(72), nn.Unflatten(1, (8, 3, 3))),
    "tokens": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(100, 8), InPlaceABN(8), nn.Unflatten(2, (2, 4))),
    "two norms": lambda: nn.Sequential(nn.Conv2d(8, 8, 1), InPlaceABN(8), ABN(8)),
    "gate": lambda: Gated(8, (8, 8), InPlaceABN),
    "block": lambda: replaced(ResidualBlock(8, (4, 4, 8), InPlaceABN), "convs.conv2", Lora(4, 4, 3, padding=1)),
    "more": lambda: appended(ResidualBlock(8, (4, 8), InPlaceABN).convs, nn.Conv2d(8, 8, 1), nn.Tanh()),
}
FOLDED_LAYERS = ("tiling", "groups")


@pytest.mark.parametrize("name", LAYERS)
def test_layers_fold_only_where_they_are_known(name):
    """A folded sequence computes the same, whatever its layers are."""
    torch.manual_seed(0)
    x = torch.randn(2, 8, 10, 10).contiguous(memory_format=torch.channels_last)
    cases = [(InPlaceABN, "", hook) for hook in ("", "pre", "forward", "own")]
    cases += [(ABN, "", ""), (ABN, "", "own"), (Scaled, "", ""), (InPlaceABNSync, "forward", "")]
    for norm, of_norm, hook in cases:
        net = nn.Sequential(with_hook(LAYERS[name](), hook), with_hook(norm(8), of_norm)).eval()
        randomise(net)
        with torch.inference_mode():
            folded, wanted = fold_abn(net), net(x)
            same([folded(x)], [wanted])
        known = name in FOLDED_LAYERS and norm in (InPlaceABN, ABN) and not hook
        assert (type(folded[1]) in (nn.Identity, nn.LeakyReLU)) == known, (norm, hook)


def test_layers_that_occur_twice():
    conv, norm = nn.Conv2d(8, 8, 1), InPlaceABN(8)
    net = nn.Sequential(conv, nn.Conv2d(8, 8, 1), conv, norm, conv, ABN(8), nn.Conv2d(8, 8, 1), norm).eval()
    randomise(net)
    x = torch.randn(1, 8, 5, 5)
    folded = fold_abn(net)
    assert [type(folded[i]) for i in (2, 4, 6)] == [FusedConv2d] * 3
    with torch.inference_mode():
        same([folded(x)], [net(x)])


def test_norms_in_training_mode_are_not_folded():
    class Adapting(nn.Sequential):
        def train(self, mode=True):
            return super().train(True)

    net, x = nn.Sequential(Adapting(nn.Sequential(nn.Conv2d(8, 8, 1), InPlaceABN(8)))), torch.randn(2, 8, 5, 5)
    randomise(net)
    with torch.inference_mode():
        same([fold_abn(net)(x)], [net.eval()(x)])


class OwnMasks(ROIHead):
    def masks(self, x, rows=None):
        return 3 * super().masks(x, rows)


class OwnScores(RPNHead):
    def forward(self, levels):
        scores, codes, shapes = super().forward(levels)
        return 2 * scores, codes, shapes


def of_class(part, kind):
    part.__class__ = kind
    return part


CHANGES = {
    "masks": lambda net: of_class(net.roi_head, OwnMasks),
    "scores": lambda net: of_class(net.rpn_head, OwnScores),
    "hook on a head": lambda net: with_hook(net.sem_head, "forward"),
    "masks by a hook": lambda net: with_hook(net.roi_head.roi_msk, "forward"),
    "classes": lambda net: with_hook(net.roi_head.roi_cls, "forward"),
    "dropped layer": lambda net: appended(net.roi_head.fc, nn.Linear(16, 16)),
    "masks of three": lambda net: replaced(net.roi_head, "roi_msk", nn.Conv2d(8, 3, 3, padding=1)),
    "by pixels": lambda net: replaced(
        net.roi_head, "conv.conv_up", nn.Sequential(nn.Conv2d(8, 32, 1), nn.PixelShuffle(2))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_users_change_in_heads_is_part_of_training_and_inference(name):
    with tiny_body():
        net = network(overrides=(TINY_CHANNELS, "roi.fc_channels=16", "roi.conv_channels=8"))
    CHANGES[name](net)
    randomise(net.eval())
    folded = fold_abn(net)
    assert not any(layer.training for layer in folded.modules())
    same(outputs(folded), outputs(net))
    boxes, classes = torch.tensor([[4.0, 5, 40, 60], [10, 0, 69, 80]]), torch.tensor([0, 1])
    with torch.inference_mode():
        features = folded.encode(PackedSequence([torch.randn(3, 70, 90)]))
        x = net.options.rois(features.levels, boxes, torch.zeros(2, dtype=torch.long), features.padded_size)
        same(folded.mask(features, [boxes], [classes]), [net.roi_head(x)[2][torch.arange(2), classes]])


def test_parts_of_others_are_not_folded():
    with tiny_body():
        net = network(overrides=(TINY_CHANNELS,))

    class Own(nn.Module):
        def __init__(self, stage):
            super().__init__()
            self.stage = stage

        def forward(self, x):
            return self.stage(x) + self.stage[0](x).mean()

    net.body.backbone.mod1 = Own(net.body.backbone.mod1).eval()
    folded = fold_abn(net)
    same(outputs(folded), outputs(net))
    assert not isinstance(folded.body.backbone.mod1.stage[0], FusedConv2d)
    assert isinstance(folded.rpn_head.conv1, FusedConv2d)


@pytest.mark.parametrize("kind", ["convolution", "winograd", "linear"])
def test_packed_weights_follow_the_weight(kind, monkeypatch):
    """After a state dict is loaded, a change in place, another parameter, and a change of the type and back."""
    make, x, plain = lambda: FusedLinear(torch.randn(6, 5), torch.randn(6)), torch.randn(3, 5), nn.functional.linear
    if kind != "linear":
        conv, x = nn.Conv2d(64, 64, 3, padding=1), torch.randn(1, 64, 40, 40)
        make, plain = lambda: FusedConv2d(torch.randn(64, 64, 3, 3), torch.randn(64), conv), conv._conv_forward
    layer, other = make(), make()
    if kind == "winograd":
        use_winograd(layer)
    ema = copy.deepcopy(layer)

    def check(layer, weight):
        assert_close(layer(x), plain(x, weight, layer.bias), rtol=1e-4, atol=1e-3)

    with torch.inference_mode():
        check(layer, layer.weight)
        check(ema, layer.weight)
        layer.load_state_dict(other.state_dict())
        check(layer, other.weight)
        layer.weight.mul_(2)
        check(layer, 2 * other.weight)
        ema.weight.lerp_(other.weight, 0.5)
        check(ema, ema.weight.clone())
        layer.to(torch.bfloat16).to(torch.float32)
        check(layer, (2 * other.weight).bfloat16().float())
        layer.load_state_dict(other.state_dict(), assign=True)
        check(layer, other.weight)

        def detach(weight):
            monkeypatch.undo()
            layer(x)  # in another thread, which still reads what it has packed
            layer.packed = layer._packed
            return weight.detach()

        layer.weight.mul_(2)
        monkeypatch.setattr(nn.Parameter, "detach", detach)
        check(layer, layer.weight)
        assert layer._packed is layer.packed


def test_winograd_has_the_activation_that_follows_the_sum_of_a_block(monkeypatch):
    monkeypatch.setattr(fused, "_saves_time", lambda *_: True)
    net, x = nn.Sequential(ResidualBlock(64, (64, 64), ABN)).eval(), torch.randn(1, 64, 9, 9)
    folded = fold_abn(net)
    use_winograd(folded)
    with torch.inference_mode():
        assert_close(folded(x), net(x), rtol=0, atol=1e-4)
        assert all(36 in layer._packed for layer in folded[0].convs)


def test_layers_that_are_not_folded_stay_at_inference():
    net = network(mode="gn", overrides=("fpn.out_channels=64",))
    for made in (net, for_inference(net, torch.device("cpu"))):
        assert {type(layer) for layer in made.body.fpn.output.modules()} >= {nn.Conv2d}


@pytest.mark.parametrize("name", [*NARROW[1:], "resnext50 gn"])
def test_bodies_with_norms_before_convolutions(name):
    name, _, mode = name.partition(" ")
    with narrow_networks():
        net = network(mode=mode or "bn", overrides=narrow_body(name))
    folded = fold_abn(net)
    same(outputs(folded), outputs(net))
    kinds = {type(layer) for layer in folded.modules()}
    assert (PreActivationBlock in kinds) == bool(mode)
    assert mode or not any(isinstance(layer, ABN) for layer in folded.modules())
    x = torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        maps = folded.body.backbone(x)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in maps.values())


def test_a_folded_network_has_no_abn_and_can_be_copied_after_use_and_the_trained_one_is_as_before():
    net = network()
    before = copy.deepcopy(net.state_dict())
    folded = fold_abn(net)
    same(outputs(copy.deepcopy(folded)), outputs(folded))
    kinds = {type(layer) for layer in folded.modules()}
    assert {FoldedBlock, FusedLinear} <= kinds
    assert not kinds & {ABN, InPlaceABN, InPlaceABNSync}
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert any(p.requires_grad for p in net.parameters())
    assert not any(p.requires_grad for p in folded.parameters())
    assert not {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in folded.parameters()}


def test_a_refusing_operator_is_said_once_and_replaced(monkeypatch):
    monkeypatch.setattr(fused, "_FAILED", set())
    conv = nn.Conv2d(3, 4, 3, padding=1)
    layer = FusedConv2d(conv.weight, conv.bias, conv, "leaky_relu", 0.1)

    def refuse(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(torch.ops.mkldnn, "_convolution_pointwise", refuse)
    x = torch.randn(1, 3, 5, 5)
    with torch.inference_mode():
        wanted = nn.functional.leaky_relu(conv(x), 0.1)
        with pytest.warns(UserWarning, match="no such thing"):
            assert_close(layer(x), wanted)
        assert_close(layer(x), wanted)


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (5, 5)])
def test_a_residual_of_few_pixels_is_added(size, monkeypatch):
    monkeypatch.setattr(fused, "_FAILED", set())
    conv = nn.Conv2d(3, 4, 3, padding=1)
    layer = FusedConv2d(conv.weight, conv.bias, conv, "leaky_relu", 0.1)
    x, residual = torch.randn(1, 3, *size), torch.randn(1, 4, *size)
    with torch.inference_mode():
        assert_close(layer(x, residual), nn.functional.leaky_relu(conv(x) + residual, 0.1))
    assert not fused._FAILED


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
        assert FusedLinear(x, x[0, :2])._usable("linear", x)
    with pytest.raises(InputError, match="needs a GPU"):
        choose_precision("fp16", cpu)
    with pytest.raises(InputError, match="auto, fp32"):
        choose_precision("int4", cpu)


def test_auto_is_about_the_gpu_that_is_used(monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(used.append(device.index)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: used[-1] > including_emulation)
    for index, wanted in enumerate((torch.float32, torch.bfloat16)):
        device = torch.device("cuda", index)
        assert choose_precision("auto", device) == compute_dtype("auto", device) == wanted
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_precision("auto", device) == torch.float32
