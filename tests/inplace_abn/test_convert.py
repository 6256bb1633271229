"""Conversion of batch norm to in-place ABN, and back: same results; what is refused, and why."""

import copy
import itertools
import operator
import re
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.networks import tiny_config
from support.op_contract import keeping, place
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torchvision import models

from seamseg.inplace_abn import ABN, InPlaceABN, InPlaceABNSync, convert, to_batchnorm
from seamseg.inplace_abn._convert import ResidualABN
from seamseg.inplace_abn._equality import check_equal
from seamseg.models.build import build_network
from seamseg.ops.norm import NormSequential


def randomize(network, seed=0, negative=0.0):
    """Give norms all kinds of scales, offsets and statistics."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, (nn.modules.batchnorm._BatchNorm, ABN)):
                if layer.weight is not None:
                    layer.weight.uniform_(0.3, 1.5, generator=generator)
                    layer.weight[torch.rand(len(layer.weight), generator=generator) < negative] *= -1
                    layer.bias.normal_(0, 0.5, generator=generator)
                if layer.running_mean is not None:
                    layer.running_mean.normal_(0, 0.5, generator=generator)
                    layer.running_var.uniform_(0.5, 2, generator=generator)
    return network


def kinds(network):
    return {name: type(layer) for name, layer in network.named_modules() if isinstance(layer, InPlaceABN)}


class Block(nn.Module):
    """A residual block with one activation for two places, and variations of how it is written."""

    def __init__(self, channels, style, activation, norm):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=i == 0) for i in range(2))
        self.bn1, self.bn2 = norm(channels), norm(channels)
        self.act, self.style = activation, style

    def forward(self, x):
        y = self.bn1(self.conv1(x))
        y = functional.leaky_relu(y, 0.2, inplace=True) if "functional" in self.style else self.act(y)
        y = self.bn2(self.conv2(y))
        if "in place" in self.style:
            y += x
        else:
            y = x + y
        return self.act(y)


NORM = st.fixed_dictionaries(
    {
        "eps": st.sampled_from([1e-5, 1e-2]),
        "momentum": st.sampled_from([0.1, 0.5, None]),
        "affine": st.booleans(),
        "track_running_stats": st.booleans(),
    }
)
ACTIVATION = st.sampled_from(
    [lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.3, inplace=True), lambda: nn.ELU(0.7), nn.Identity, nn.SiLU]
)
PART = st.sampled_from(["conv bn act", "conv bn", "bn act conv", "block", "block functional", "block in place"])


@settings(max_examples=15, derandomize=True)
@given(st.lists(st.tuples(PART, NORM, ACTIVATION), min_size=1, max_size=3), st.booleans(), st.sampled_from([0.0, 0.5]))
def test_random_networks(parts, shared, negative):
    torch.manual_seed(0)
    one, layers = parts[0][2](), []
    for part, options, activation in parts:
        make = lambda c, options=options: nn.BatchNorm2d(c, **options)  # noqa: E731
        act = one if shared else activation()
        if part.startswith("block"):
            layers.append(Block(4, part, act, make))
        else:
            made = {"conv": lambda: nn.Conv2d(4, 4, 1), "bn": lambda: make(4), "act": lambda: act}  # noqa: B023
            layers += [made[word]() for word in part.split()]
    first_reads_the_input = isinstance(layers[0], nn.BatchNorm2d) or any(
        isinstance(a, nn.modules.batchnorm._BatchNorm) and not isinstance(b, nn.Conv2d)
        for b, a in itertools.pairwise(layers)
    )
    network = randomize(nn.Sequential(*layers), negative=0 if first_reads_the_input else negative)
    before = copy.deepcopy(network.state_dict())
    x = torch.randn(2, 4, 5, 5)
    made = convert(network, example=x)
    assert list(made.state_dict()) == list(before)
    assert_close(network.state_dict(), before, rtol=0, atol=0)
    with_activation = sum("act" in part for part, _, _ in parts)
    assert len(kinds(made)) >= with_activation


def leaky(network):
    """Replace the ReLUs of a torchvision network by LeakyReLUs, in place as they are."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.LeakyReLU(0.01, inplace=child.inplace))
    return network


def test_torchvision_resnet():
    network = randomize(leaky(models.resnet18(num_classes=3)), negative=0.3)
    x = torch.randn(2, 3, 64, 64)
    made = convert(network, example=x)
    assert list(made.state_dict()) == list(network.state_dict())
    found = kinds(made)
    assert len(found) == 20
    assert {n for n, kind in found.items() if kind is ResidualABN} == {
        f"layer{i}.{j}.bn2" for i in range(1, 5) for j in range(2)
    }
    # a part can be used alone, copied and compiled
    copy.deepcopy(made).layer2(torch.randn(1, 64, 8, 8))
    sizes = []
    for net in (made, network):
        own, kept = {place(p) for p in net.state_dict().values()}, keeping(lambda net=net: net(x))[1]
        sizes.append(sum(t.untyped_storage().nbytes() for where, t in kept.items() if where not in own))
    assert sizes[0] < 0.6 * sizes[1]


def test_densenet_with_a_function_as_activation():
    torch.manual_seed(0)
    network = randomize(models.DenseNet(4, (2, 2), 8, num_classes=3))
    x = torch.randn(2, 3, 64, 64)
    with pytest.raises(ValueError, match=r"features.norm0, .*: ReLU follows, which cannot be inverted \(relu='leaky_"):
        convert(network)
    made = convert(network, relu="elu:0.5", example=x)
    assert len(kinds(made)) == sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert {m.activation for m in made.modules() if isinstance(m, InPlaceABN)} == {"elu"}


def pair(norm=None, *layers, channels=4):
    return nn.Sequential(
        nn.Conv2d(4, channels, 1), nn.BatchNorm2d(channels) if norm is None else norm, *(layers or (nn.LeakyReLU(),))
    )


def test_state_and_options_are_kept():
    norm = nn.BatchNorm2d(4, eps=1e-3, momentum=None)
    network = randomize(pair(norm, nn.ELU(0.5)))
    norm.weight.requires_grad_(False)
    norm.num_batches_tracked.fill_(5)
    norm.eval()
    made = convert(network.bfloat16())
    layer = made[1]
    assert (layer.eps, layer.momentum, layer.activation, layer.activation_param) == (1e-3, None, "elu", 0.5)
    assert (layer.training, made.training, int(layer.num_batches_tracked)) == (False, True, 5)
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight is not norm.weight
    assert type(made[2]) is nn.Identity
    network = pair()
    with torch.no_grad():
        network[1].weight.copy_(torch.tensor([1e-5, 1.0, 0.3, 100.0]))
    weight = convert(network)[1].weight.detach()
    assert_close(weight.double().abs() + 1e-5, network[1].weight.detach().double(), rtol=1e-7, atol=1e-12)
    assert (weight >= 0).all()


def test_synchronised_layers_and_a_norm_alone():
    assert type(convert(pair(nn.SyncBatchNorm(4)))[1]) is InPlaceABNSync
    assert type(convert(pair())[1]) is InPlaceABN
    assert type(convert(pair(), sync=True)[1]) is InPlaceABNSync
    assert type(convert(nn.BatchNorm2d(3), example=torch.randn(2, 3, 4, 4))) is InPlaceABN


def refused(network, reason, **options):
    with pytest.raises(ValueError, match=re.escape(reason)):
        convert(network, **options)


class Twice(nn.Module):
    """Forwards that convert has to tell apart."""

    def __init__(self, style):
        super().__init__()
        self.conv, self.bn, self.act, self.style = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.LeakyReLU(), style
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        return STYLES[self.style](self, x, self.conv(x))


STYLES = {
    "norm twice": lambda net, x, y: net.act(net.bn(y)) + net.act(net.bn(x)),
    "input read twice": lambda net, x, y: net.act(net.bn(y)) * y.square(),
    "norm read twice": lambda net, x, y: net.act(z := net.bn(y)) + z,
    "changed in place": lambda net, x, y: net.act(net.bn(y)).mul_(2),
    "assigned": lambda net, x, y: operator.iadd(net.act(net.bn(y)), x),
    "dropout in place": lambda net, x, y: net.drop(net.act(net.bn(y))),
    "by value": lambda net, x, y: net.act(net.bn(y)) if y.sum() > 0 else net.bn(y),
    "mode": lambda net, x, y: net.act(net.bn(y)) if net.training else net.bn(y),
    "relu function": lambda net, x, y: functional.relu(net.bn(y)),
}


@pytest.mark.parametrize("style", ["input read twice", "norm read twice", "assigned", "dropout in place"])
def test_who_else_reads(style):
    torch.manual_seed(0)
    network = randomize(Twice(style))
    assert len(kinds(convert(network, example=torch.randn(2, 4, 5, 5)))) == 1
    if style == "input read twice":
        with torch.no_grad():
            network.bn.weight[1] = -0.5
        refused(network, "bn: 1 of its scales are negative, which in-place ABN cannot represent, and")
    with pytest.raises(RuntimeError, match=r"InPlaceABN: its output.* was changed in place before the backward pass"):
        convert(Twice("changed in place"), example=torch.randn(2, 4, 5, 5))


REFUSED = {
    "norm twice": "bn: the layer is called 2 times",
    "by value": "bn: torch.fx finds no call of the layer",
    "mode": r"bn: torch.fx finds no call .* the forward of the network \(Twice\) depends on the training mode",
    "relu function": "bn: ReLU follows",
}


@pytest.mark.parametrize("style", list(REFUSED))
def test_refused(style):
    with pytest.raises(ValueError, match=REFUSED[style]):
        convert(Twice(style))
    with pytest.warns(UserWarning, match=REFUSED[style]):
        made = convert(Twice(style), otherwise="keep")
    assert not kinds(made)


class OwnNorm(nn.BatchNorm2d):
    pass


class Optional(Twice):
    def forward(self, x, mask=None):
        return functional.leaky_relu(self.bn(x), 0.1)


def test_refused_layers():
    refused(pair(OwnNorm(4)), "1: OwnNorm is a class of its own")
    refused(Optional(""), "the forward of the network (Optional) has the optional argument 'mask'")
    norm = nn.BatchNorm2d(4)
    refused(nn.Sequential(norm, nn.LeakyReLU(), norm), "0, 2: the layer has two names, or shares its parameters")
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda *_: None)
    refused(pair(norm), "derived from batch norm, or has hooks")
    tied = pair(None, nn.LeakyReLU(), nn.BatchNorm2d(4))
    tied[3].weight = tied[1].weight
    refused(tied, "1, 3: the layer has two names, or shares its parameters")
    refused(pair(None, nn.LeakyReLU(0.0)), "1: leaky_relu with the parameter 0.0 follows, which cannot be inverted")
    refused(pair(None, nn.ELU(-1.0)), "1: elu with the parameter -1.0 follows, which cannot be inverted")
    broken = pair()
    nn.init.constant_(broken[1].weight, float("nan"))
    refused(broken, "1: its weight is not finite")
    refused(pair(), "small_scales must be 'refuse' or 'clamp'", small_scales="no")
    refused(pair(), "otherwise 'refuse' or 'keep'", otherwise="no")
    for relu in ("relu", "leaky_relu:x", "identity:1", "selu"):
        refused(pair(), f"relu must be like 'leaky_relu:0.01' or 'elu:1.0', got '{relu}'", relu=relu)
    refused(pair(), "leaky_relu can only be inverted with a positive parameter", relu="leaky_relu:0")


def test_small_scales():
    network = randomize(pair())
    with torch.no_grad():
        network[1].weight[:3] = torch.tensor([0.0, -1e-7, 1e-6])
    refused(network, "1: 3 of its scales are below eps = 1e-05")
    made = convert(network, small_scales="clamp", example=torch.randn(2, 4, 3, 3))
    assert made[1].weight[:3].tolist() == [0, 0, 0]
    assert float(network[1].weight[1].detach()) == pytest.approx(-1e-7)


@pytest.mark.parametrize(
    ("forward", "activation"),
    [
        (lambda net, x: operator.iadd(net.body(x), x), "identity"),
        (lambda net, x: operator.iadd(net.act(net.body(x)), x), "leaky_relu"),
        (lambda net, x: net.act(net.body.forward(x)), "leaky_relu"),
        (lambda net, x: net.body(x) + x, "identity"),
    ],
)
def test_what_follows_a_module_that_ends_with_a_norm(forward, activation):
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.act = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.LeakyReLU()

        def forward(self, x):
            return forward(self, x)

    made = convert(randomize(Around()), example=torch.randn(2, 4, 3, 3))
    assert made.body[1].activation == activation


def test_inside_a_network_that_cannot_be_traced():
    class ByValue(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = pair()
            self.blocks = nn.ModuleList([Block(4, "block", nn.LeakyReLU(), nn.BatchNorm2d)])

        def forward(self, x):
            y = self.features(x)
            return self.blocks[0](y) if float(y.detach().mean()) > -100 else y

    network = randomize(ByValue())
    made = convert(network, example=torch.randn(2, 4, 6, 6))
    assert kinds(made) == {"features.1": InPlaceABN, "blocks.0.bn1": InPlaceABN, "blocks.0.bn2": ResidualABN}
    assert isinstance(made, ByValue)


def test_differences_are_found():
    x = torch.randn(2, 4, 5, 5)
    network = randomize(pair())
    for change in ("0.weight", "1.bias", "1.running_mean"):
        other = copy.deepcopy(network)
        with torch.no_grad():
            other.state_dict()[change][0] += 0.01
        with pytest.raises(ValueError, match=r"convert: in (training|evaluation) mode .* differs by"):
            check_equal("convert", network, other, x)
    check_equal("convert", network, copy.deepcopy(network), x)


# To batch norm, in the networks of this project as well


@pytest.mark.parametrize("kind", [ABN, InPlaceABN, InPlaceABNSync])
@pytest.mark.parametrize("activation", [("leaky_relu", 0.1), ("elu", 0.5), ("identity", 0.01)])
@pytest.mark.parametrize("options", [{}, {"affine": False, "momentum": None}, {"track_running_stats": False}])
def test_to_batchnorm(kind, activation, options):
    layer = randomize(kind(3, 1e-3, activation=activation[0], activation_param=activation[1], **options), negative=0.5)
    x = torch.randn(4, 3, 5, 5)
    made = to_batchnorm(layer, example=x)
    norm = made if activation[0] == "identity" else made[0]
    assert type(norm) is nn.BatchNorm2d
    assert (norm.eps, norm.momentum, norm.affine) == (1e-3, layer.momentum, layer.affine)
    if layer.weight is not None:
        in_place = isinstance(layer, InPlaceABN)
        expected = layer.weight.double().abs() + 1e-3 if in_place else layer.weight.double()
        assert_close(norm.weight.double(), expected, rtol=1e-7, atol=1e-9)
    for training in (True, False):
        layer.train(training), made.train(training)
        assert_close(made(x), layer(x), rtol=1e-5, atol=1e-5)
    assert_close(list(made.buffers()), list(layer.buffers()), rtol=1e-5, atol=1e-5)


def test_state_and_names_of_batchnorm():
    last = InPlaceABN(4, activation="identity")
    network = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), bn=InPlaceABN(4), last=last))
    network.bn.weight.requires_grad_(False)
    network.bn.eval()
    made = to_batchnorm(network.half())
    assert [key.removeprefix("bn.") for key in made.state_dict()][2:5] == ["0.weight", "0.bias", "0.running_mean"]
    assert "last.weight" in made.state_dict()
    assert made.bn[0].weight.dtype == torch.half
    assert not made.bn[0].training
    assert made.last.training
    assert (made.bn[0].weight.requires_grad, made.bn[0].bias.requires_grad) == (False, True)
    assert type(network.bn) is InPlaceABN, "the original is not changed"


def test_synchronised_batchnorms_keep_their_group():
    group = object()
    network = nn.Sequential(InPlaceABNSync(3, group=group), InPlaceABN(3))
    made = to_batchnorm(network, sync=True)
    assert type(made[0][0]) is nn.SyncBatchNorm
    assert made[0][0].process_group is group
    assert network[0].group is group
    assert type(made[1][0]) is nn.BatchNorm2d
    assert type(to_batchnorm(network)[0][0]) is nn.BatchNorm2d


def test_relu_and_other_dimensions():
    network = NormSequential(
        nn.Conv3d(2, 3, 1), ABN(3, activation="relu"), nn.Flatten(), nn.Linear(24, 5), InPlaceABN(5)
    )
    made = to_batchnorm(randomize(network, negative=0.5), example=torch.randn(4, 2, 2, 2, 2))
    assert [type(layer) for layer in (*made[1], made[4][0])] == [nn.BatchNorm3d, nn.ReLU, nn.BatchNorm1d]


def test_there_and_back():
    network = nn.Sequential(*(Block(3, "block", nn.ELU(0.5), nn.BatchNorm2d) for _ in range(2)))
    x = torch.randn(2, 3, 4, 4)
    made = to_batchnorm(convert(network, example=x), example=x)
    for training in (True, False):
        network.train(training), made.train(training)
        assert_close(made(x), network(x), rtol=1e-5, atol=1e-6)
    exported = torch.export.export(made.eval(), (x,))
    assert_close(exported.module()(x), network.eval()(x), rtol=1e-5, atol=1e-6)


def test_refused_in_place_layers():
    class Own(InPlaceABN):
        pass

    with pytest.raises(ValueError, match="to_batchnorm: 0: Own is a class of its own"):
        to_batchnorm(nn.Sequential(Own(3)))
    hooked = InPlaceABN(3)
    hooked.register_forward_hook(lambda module, inputs, y: 2 * y)
    with pytest.raises(ValueError, match="to_batchnorm: 1: the layer has hooks"):
        to_batchnorm(nn.Sequential(nn.Conv2d(3, 3, 1), hooked))


@pytest.mark.parametrize("mode", ["bn", "syncbn"])
def test_panoptic_network(mode):
    torch.manual_seed(0)
    net = randomize(build_network(tiny_config(mode=mode), 2, 3), negative=0.5).eval()
    made = to_batchnorm(net)
    assert not any(isinstance(layer, ABN) for layer in made.modules())
    x, rois = torch.randn(1, 3, 64, 96), torch.randn(2, net.roi_head.conv.conv1.in_channels, *net.roi_head.roi_size)
    with torch.inference_mode():
        dense, other = net.dense(x), made.dense(x)
        expected = [*dense.levels, dense.obj_logits, dense.bbx_logits, dense.semantic_logits, *net.roi_head(rois)]
        found = [*other.levels, other.obj_logits, other.bbx_logits, other.semantic_logits, *made.roi_head(rois)]
    for result, wanted in zip(found, expected, strict=True):
        assert_close(result, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
