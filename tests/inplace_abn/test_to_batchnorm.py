"""Conversion of in-place ABN to batch norm: same results, in this project's networks as well."""

from collections import OrderedDict

import pytest
import torch
from support.networks import tiny_config
from torch import nn
from torch.testing import assert_close

from seamseg.inplace_abn import ABN, InPlaceABN, InPlaceABNSync, convert, to_batchnorm
from seamseg.models.build import build_network
from seamseg.models.panoptic_inference import masks_of
from seamseg.ops.norm import NormSequential
from seamseg.structures import PackedSequence

KINDS = (ABN, InPlaceABN, InPlaceABNSync)


def randomize(network):
    generator = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, ABN):
            with torch.no_grad():
                if layer.weight is not None:
                    # negative weights are where in-place ABN is not batch norm
                    layer.weight.uniform_(-1.5, 1.5, generator=generator)
                    layer.bias.normal_(0, 0.5, generator=generator)
                if layer.running_mean is not None:
                    layer.running_mean.normal_(0, 0.5, generator=generator)
                    layer.running_var.uniform_(0.5, 2, generator=generator)
    return network


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [("leaky_relu", 0.1), ("elu", 0.5), ("identity", 0.01)])
@pytest.mark.parametrize("options", [{}, {"affine": False, "momentum": None}, {"track_running_stats": False}])
def test_layers(kind, activation, options):
    layer = randomize(kind(3, 1e-3, activation=activation[0], activation_param=activation[1], **options))
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


def test_state_and_names():
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


def test_synchronised_layers_keep_their_group():
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
    made = to_batchnorm(randomize(network), example=torch.randn(4, 2, 2, 2, 2))
    assert [type(layer) for layer in (*made[1], made[4][0])] == [nn.BatchNorm3d, nn.ReLU, nn.BatchNorm1d]


def test_there_and_back():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn, self.act = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ELU(0.5)

        def forward(self, x):
            return self.act(self.bn(self.conv(x)) + x)

    network, x = nn.Sequential(Block(), Block()), torch.randn(2, 3, 4, 4)
    made = to_batchnorm(convert(network, example=x), example=x)
    for training in (True, False):
        network.train(training), made.train(training)
        assert_close(made(x), network(x), rtol=1e-5, atol=1e-6)
    exported = torch.export.export(made.eval(), (x,))
    assert_close(exported.module()(x), network.eval()(x), rtol=1e-5, atol=1e-6)


def test_refused():
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
    net = randomize(build_network(tiny_config(mode=mode), 2, 3)).eval()
    made = to_batchnorm(net)
    assert not any(isinstance(layer, ABN) for layer in made.modules())
    images, index = PackedSequence([torch.randn(3, 70, 90)]), torch.zeros(2).long()
    boxes = torch.tensor([[4.0, 5, 40, 60], [0, 0, 20, 20]])
    found = []
    for network in (net, made):
        with torch.inference_mode():
            features = network.encode(images)
            rois = network.options.rois(features.levels, boxes, index, features.padded_size)
            masks = masks_of(network.roi_head, rois, torch.tensor([0, 1]))
            scores = network.score_anchors(features)[1:]
            cls, bbx = network.score_boxes(features, boxes, index)
            found.append([*features.levels, *scores, cls, bbx, masks, network.sem_head(features.levels)])
    for expected, result in zip(*found, strict=True):
        assert_close(result, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
