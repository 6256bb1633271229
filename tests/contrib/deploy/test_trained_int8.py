"""ONNX files of networks trained for int8: layers in integer kernels compute what the training simulates."""

from collections import OrderedDict
from unittest import mock

import numpy as np
import onnx
import torch
from support.networks import randomise
from torch import nn

from seamseg.contrib.deploy.network import export_net
from seamseg.contrib.deploy.onnx import write_onnx
from seamseg.contrib.deploy.quantize import executed_operators, quantise_file
from seamseg.contrib.exported.onnx_engines import open_onnx
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.backbones.residual import ResidualBlock
from seamseg.models.folding import fold_layers
from seamseg.models.quantised import choosing_ranges, quantised
from seamseg.ops.norm import InPlaceABN, NormSequential
from seamseg.ops.quantisation import FakeQuantise

CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))


def small():
    """A layer of each sort, and an output layer."""
    layers = {
        "body": NormSequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), InPlaceABN(8), nn.MaxPool2d(2)),
        "block": ResidualBlock(8, (16, 16), InPlaceABN, stride=2),
        "up": NormSequential(nn.ConvTranspose2d(16, 8, 2, stride=2, bias=False), InPlaceABN(8)),
        "cls": nn.Conv2d(8, 5, 1),
    }
    return nn.Sequential(OrderedDict(layers))


def write(net, folder, size):
    """The exported int8 file, and the module that it is an export of."""
    module = export_net(net, None, None, standard_ops=True)
    path = folder / "int8.onnx"
    write_onnx(module, folder / "float.onnx", ExportedMetadata("classification", "", CLASSES, size), size)
    stated = quantise_file(folder / "float.onnx", path, None)
    assert stated.precision == "int8"
    assert stated.extra == {"trained_for_int8": True}
    return path, module


@torch.no_grad()
def float_and_simulated(net, module, inputs):
    """The outputs without rounding, and with."""
    rounded = [value.numpy().copy() for value in module(*inputs)]
    places = [place for place in net.modules() if isinstance(place, FakeQuantise)]
    # a place that observes values does not round them
    for place in places:
        place.histogram = mock.Mock()
    plain = [value.numpy().copy() for value in module(*inputs)]
    for place in places:
        place.histogram = None
    return plain, rounded


def assert_same_scales(path, net):
    """Each place in the network where values are rounded is one in the file, with its scale and zero point."""
    model = onnx.load(path)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    found = {tuple(float(constants[name]) for name in node.input[1:]) for node in nodes}
    places = [place for place in net.modules() if isinstance(place, FakeQuantise)]
    wanted = {(float(place.scale), float(place.zero_point)) for place in places}
    for one, other in ((found, wanted), (wanted, found)):
        for scale, zero in one:
            near = [other_scale for other_scale, other_zero in other if other_zero == zero]
            assert any(abs(scale - other_scale) <= 1e-6 * scale for other_scale in near)


def test_each_sort_of_layer(tmp_path):
    torch.manual_seed(0)
    net = small().eval()
    randomise(net)
    image = torch.randn(1, 3, 32, 48)
    net = quantised(fold_layers(net)).eval()
    with choosing_ranges(net), torch.no_grad():
        net(image)
    path, module = write(net, tmp_path, (32, 48))
    operators = executed_operators(onnx.load(path))
    assert operators["QLinearConv"] == 5
    assert operators["Conv"] + operators["FusedConv"] == 1
    assert operators["ConvTranspose"] == 0
    assert_same_scales(path, net)
    plain, rounded = (values[0] for values in float_and_simulated(net, module, [image]))
    (found,) = open_onnx(path).run(None, {"image": image.numpy()})
    step = float(net.up[0].cells.activated.scale)
    # a value halfway between two levels may be rounded to either
    assert np.abs(found - rounded).mean() < step / 50
    assert np.abs(found - plain).mean() > step / 4
