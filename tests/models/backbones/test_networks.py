"""Backbones by name: keys, shapes, strides, options, training, errors; residual blocks and the feature pyramid."""

import gzip
import json
from functools import cache

import pytest
import torch
from support.golden_files import DATA
from support.golden_weights import stored
from support.narrow_backbones import NARROW, build_narrow
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from seamseg.config.kinds import BODIES, layout_of
from seamseg.models.backbones.base import FPN
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.build import BACKBONES, build_backbone, norm_factory
from seamseg.ops.norm import ABN, ActivatedIdentity, InPlaceABN, InPlaceABNSync

INPLACE = norm_factory("inplace")


@cache
def golden_keys():
    with gzip.open(DATA / "backbone_keys.json.gz") as file:
        return json.load(file)


def size(network):
    parameters = list(network.parameters())
    return sum(p.numel() for p in parameters), len(parameters)


@pytest.mark.parametrize("name", BACKBONES)
def test_keys_shapes_and_sizes(name):
    wanted = stored()["params"][name]
    with torch.device("meta"):
        if "3x3" in wanted:
            seven = build_backbone(name, INPLACE, classes=1000)
            network = build_backbone(name, INPLACE, classes=1000, input_3x3=True)
            assert size(seven) == (wanted["7x7"], wanted["7x7_tensors"])
            assert size(network) == (wanted["3x3"], wanted["3x3_tensors"])
        else:
            network = build_backbone(name, INPLACE, classes=1000)
            assert size(network) == (wanted["params"], wanted["tensors"])
    assert (network.out_channels, network.out_strides) == (BODIES[name].out_channels, BODIES[name].out_strides)
    state = network.state_dict()
    assert [[key, list(value.shape)] for key, value in state.items()] == golden_keys()[name]
    counters = {value.dtype for key, value in state.items() if key.endswith("num_batches_tracked")}
    assert counters == {torch.int64}


@pytest.mark.parametrize("name", NARROW)
def test_outputs_have_the_stated_channels_and_strides(name):
    network = build_narrow(name, INPLACE, classes=7).eval()
    x = torch.randn(2, 3, 64, 128)
    with torch.no_grad():
        outputs = network(x)
        network.keep_outputs = False
        assert torch.equal(network(x), outputs["classifier"])
    assert outputs.pop("classifier").shape == (2, 7)
    assert {key: x.shape[1] for key, x in outputs.items()} == network.out_channels
    found = {key: (64 // x.shape[2], 128 // x.shape[3]) for key, x in outputs.items()}
    assert found == {key: (stride, stride) for key, stride in network.out_strides.items()}
    assert list(network.out_strides.values())[-1] == 32


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in NARROW), ("resnet50", {"dilation": (2, 1, 2, 4)})]
)
def test_in_place_norms_train_as_plain_ones(name, options):
    """With positive scales, and the same epsilon in them, the two norms compute the same."""
    torch.manual_seed(0)
    networks = [
        build_narrow(name, norm_factory(mode), classes=5, **options).double() for mode in ("inplace", "standard")
    ]
    state = networks[0].state_dict()
    networks[1].load_state_dict(
        {k: v + 1e-5 if v.dim() == 1 and k.endswith("weight") else v.clone() for k, v in state.items()}
    )
    x = torch.randn(2, 3, 64, 64, dtype=torch.double)
    results = []
    for network in networks:
        torch.manual_seed(1)  # of the dropout
        outputs = network(x)
        sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs.values()).backward()
        results.append((outputs, dict(network.named_parameters()), dict(network.named_buffers())))
    (found, parameters, buffers), (wanted, others, references) = results
    for key, y in found.items():
        assert_close(y, wanted[key], rtol=1e-8, atol=1e-8)
    for key, p in parameters.items():
        assert_close(p.grad, others[key].grad, rtol=1e-6, atol=1e-6 * float(others[key].grad.abs().max()) + 1e-9)
    for key, value in buffers.items():
        assert_close(value, references[key], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NARROW)
def test_checkpointed_stages_train_the_same(name):
    results = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        network = build_narrow(name, INPLACE, classes=5, checkpoint=checkpoint, keep_outputs=False)
        network(torch.linspace(-1, 1, 2 * 3 * 32 * 48).view(2, 3, 32, 48)).square().sum().backward()
        results.append([*(p.grad for p in network.parameters()), *network.buffers()])
    for found, wanted in zip(*results, strict=True):
        assert torch.equal(found, wanted)


def test_freezing_includes_what_lies_between():
    network = build_narrow("densenet121", INPLACE)
    network.freeze(3)
    frozen = {name.split(".")[0] for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {"mod1", "mod2", "tra2", "mod3"}
    assert network.tra3.conv.weight.requires_grad


_STRIDES = [
    # a dilated first stage: only ResNet omits the max pooling of mod1
    ("resnet50", (2, 1, 2, 4), {"mod1": 2, "mod2": 2, "mod3": 4, "mod4": 4, "mod5": 4}),
    ("resnet50", ([1], 1, 1, 1), {"mod1": 2, "mod2": 2, "mod3": 4, "mod4": 8, "mod5": 16}),
    ("resnet50", 2, dict.fromkeys(("mod1", "mod2", "mod3", "mod4", "mod5"), 2)),
    ("resnext50", (2, 1, 2, 4), {"mod1": 4, "mod2": 4, "mod3": 8, "mod4": 8, "mod5": 8, "bn_out": 8}),
    ("densenet121", (2, 1, 1, 4), {"mod1": 4, "mod2": 4, "tra2": 8, "mod3": 8, "tra3": 16, "mod4": 16, "tra4": 16}),
    # a list for the blocks of a stage keeps the size, even one that begins with 1
    ("resnext50", (1, [1, 2], 1, 1), {"mod1": 4, "mod2": 4, "mod3": 4, "mod4": 8, "mod5": 16, "bn_out": 16}),
    ("resnext50", (1, [1, 1], 2, [1]), {"mod1": 4, "mod2": 4, "mod3": 4, "mod4": 4, "mod5": 4, "bn_out": 4}),
    ("densenet121", (1, [1, 2], 1, [2]), {"mod1": 4, "mod2": 4, "tra2": 4, "mod3": 4, "tra3": 8, "mod4": 8, "tra4": 8}),
    ("wider_resnet16_a2", True, dict(zip(BODIES["wider_resnet16_a2"].out_strides, (1, 2, 4, 8, 8, 8, 8, 8)))),
]


@pytest.mark.parametrize(("name", "dilation", "wanted"), _STRIDES)
def test_strides_of_dilated_stages(name, dilation, wanted):
    network = build_narrow(name, INPLACE, dilation=dilation).eval()
    with torch.no_grad():
        outputs = network(torch.zeros(1, 3, 64, 96))
    found = {key: 64 // x.shape[2] for key, x in outputs.items()}
    assert found == network.out_strides == layout_of(name, {"dilation": dilation}).out_strides
    assert {key: found[key] for key in wanted} == wanted
    pools = [
        key for key in ("tra2", "tra3", "tra4") if hasattr(network, key) and hasattr(getattr(network, key), "pool")
    ]
    assert len(pools) == sum(stage == 1 for stage in dilation[1:]) if name == "densenet121" else not pools


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_width_scales_all_channels(name):
    with torch.device("meta"):
        wanted = {stage: channels // 8 for stage, channels in build_backbone(name, INPLACE).out_channels.items()}
    network = build_backbone(name, INPLACE, width=8)
    shapes = {stage: x.shape[1] for stage, x in network.eval()(torch.zeros(1, 3, 32, 32)).items()}
    assert network.out_channels == shapes == wanted == layout_of(name, {"width": 8}).out_channels


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet5", {}, "unknown network 'resnet5': choose one of resnet18, .*did you mean 'resnet50'"),
        ("resnet50", {"input_3x3": True}, "resnet50 has no parameter 'input_3x3', only dilation, dropout"),
        ("resnext50", {"blocks": [0, 1, 1, 1]}, r"resnext50: blocks must be like \(3, 4, 6, 3\), got"),
        ("resnet50", {"blocks": [1] * 5}, r"resnet50: blocks must be like"),
        ("resnet18", {"width": -4}, "resnet18: width must be like 64, got -4"),
        ("wider_resnet38", {"dilation": True}, "WiderResNet: dilation must be False, got True"),
        ("wider_resnet38_a2", {"dilation": (1, 1, 2, 4)}, r"dilation must be True, False or \(1, 2, 4, 4\), got"),
        ("resnext50", {"dilation": (1, 2)}, "ResNeXt: dilation has 2 entries, give one number or 4, from mod2"),
        ("resnext50", {"dilation": (1, (1, 2), 1, 1)}, "ResNeXt: dilation of mod3 has 2 entries, it has 4 blocks"),
        ("densenet121", {"dilation": (1, 1, 1, 0)}, "DenseNet: dilation of mod5 must be positive integers, got 0"),
        ("resnet50", {"dropout": (0.1, 0.2)}, "ResNet: dropout has 2 entries"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(ValueError, match=message) as caught, torch.device("meta"):
        build_backbone(name, INPLACE, **options)
    assert "\n" not in str(caught.value)


def test_norms():
    for mode, kind in (("standard", ABN), ("inplace", InPlaceABN), ("sync", InPlaceABNSync)):
        layer = norm_factory(mode, "elu", 0.3)(4)
        assert type(layer) is kind
        assert (layer.activation, layer.activation_param) == ("elu", 0.3)
    with pytest.raises(ValueError, match="relu cannot be inverted, choose leaky_relu, elu or identity"):
        norm_factory("sync", "relu")
    with pytest.raises(ValueError, match="unknown norm 'syncbn': choose one of standard, inplace, sync; did you mean"):
        norm_factory("syncbn")


@pytest.mark.parametrize("norm", [InPlaceABN, ABN, ActivatedIdentity])
def test_block_gives_the_same_with_and_without_gradients(norm):
    torch.manual_seed(0)
    block = ResidualBlock(4, (4, 4), norm).eval()
    x = torch.randn(2, 4, 9, 9)
    kept = x.clone()
    with torch.no_grad():
        without = block(x)
    assert torch.equal(x, kept), "the input is not written over"
    assert_close(without, block(x))


class _Convolutions(TorchDispatchMode):
    """Records kernel size, stride and input channels of each convolution, of backward passes too."""

    def __init__(self):
        super().__init__()
        self.calls = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        position = {"aten::convolution": 0, "aten::convolution_backward": 1}.get(func._schema.name)
        if position is not None:
            x, weight = args[position : position + 2]
            self.calls.add((func._schema.name, weight.shape[-1], max(args[position + 3]), x.shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", [InPlaceABN, ABN])
def test_narrow_projections_are_subsampled_first(norm):
    """oneDNN writes past its workspace for 1x1 convolutions with a stride and fewer than 16 channels (issue 6035)."""
    block = ResidualBlock(8, (16, 16), norm, stride=2).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 8, 11).to(memory_format=torch.channels_last).requires_grad_()
    with _Convolutions() as convolutions:
        block(x).sum().backward()
    pointwise = {call for call in convolutions.calls if call[1] == 1}
    assert pointwise == {("aten::convolution", 1, 1, 8), ("aten::convolution_backward", 1, 1, 8)}
    projection = block.double().proj_conv
    assert_close(projection(x.double()), functional.conv2d(x.double(), projection.weight, stride=2))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_levels_are_the_top_down_sum(interpolation):
    torch.manual_seed(0)
    fpn = FPN([4, 6, 8], 5, 2, ABN, interpolation).eval()
    maps = [torch.randn(2, 4, 13, 18), torch.randn(2, 6, 7, 9), torch.randn(2, 8, 4, 5)]
    corners = {} if interpolation == "nearest" else {"align_corners": False}
    top = fpn.lateral[2](maps[2])
    middle = fpn.lateral[1](maps[1]) + functional.interpolate(top, size=(7, 9), mode=interpolation, **corners)
    bottom = fpn.lateral[0](maps[0]) + functional.interpolate(middle, size=(13, 18), mode=interpolation, **corners)
    first = fpn.extra[0](maps[2])
    wanted = [fpn.output[0](bottom), fpn.output[1](middle), fpn.output[2](top), first, fpn.extra[1](first)]
    for found, level in zip(fpn(maps), wanted, strict=True):
        assert_close(found, level)
