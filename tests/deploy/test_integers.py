"""int8 packages and files: layers in integer kernels compute what the training simulates."""

import sys
from unittest import mock

import numpy as np
import onnx
import pytest
import torch
from support.exported import MEAN, SIZE, STD, detector, picture, read_package_metadata
from support.networks import randomise
from support.semantic_networks import semantic_net
from torch import nn

from seamseg.data.transforms import Normalise
from seamseg.deploy import aoti
from seamseg.deploy.integers import calibrated, integer_form
from seamseg.deploy.network import export_net
from seamseg.deploy.onnx import write_onnx
from seamseg.deploy.quantize import executed_operators, quantise_file
from seamseg.formats.exported import ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.onnx_engines import open_onnx
from seamseg.inference.package import PackageSession
from seamseg.models.backbones.residual import ResidualBlock
from seamseg.models.folding import fold_abn, fold_layers
from seamseg.models.quantised import QuantisedConv2d, QuantisedLayer, choosing_ranges, is_quantised, quantised
from seamseg.ops.norm import InPlaceABN, NormSequential
from seamseg.ops.quantisation import FakeQuantise
from seamseg.utils.errors import InputError

CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))
NORMALISE = Normalise(MEAN, STD)
IMAGE = picture()[0][0].permute(1, 2, 0).numpy()


def network(kind):
    """A small network that simulates int8 arithmetic."""
    net = fold_abn(semantic_net()) if kind == "semantic" else detector(kind)
    return calibrated(net, NORMALISE, [IMAGE])


def module_of(net, part="all"):
    return export_net(net, MEAN, STD, part)


@torch.no_grad()
def outputs_of(module):
    return [value.float() for value in module(*picture())]


def assert_near(found, wanted, part=0.02):
    """A value halfway between two levels may be rounded to either, which the layers after it amplify."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().mean() <= part * other.abs().mean()


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_the_same_as_simulated(kind):
    net = network(kind)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    module = module_of(net, "dense")
    made = integer_form(module)
    assert not is_quantised(made)
    # with the compute type of the network, which has integers now
    assert_near(outputs_of(made), outputs_of(module))
    layers = [layer for layer in made.modules() if isinstance(layer, QuantisedLayer) and layer.after is not None]
    assert len(layers) > 10
    assert all(layer.weight.dtype == torch.int8 for layer in layers)
    # the network itself is not changed
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_calibration():
    net = detector("panoptic")
    made = calibrated(net, NORMALISE, [IMAGE, IMAGE[::2, ::2]])
    assert is_quantised(made)
    assert not is_quantised(net)
    scales = [layer.after.scale for layer in made.modules() if isinstance(layer, QuantisedConv2d) and layer.after]
    assert len(scales) > 10
    assert all(0 < scale != 1 for scale in scales)
    # the convolution of the RPN head has a range for each level, as in ONNX files
    hidden = made.rpn_head.hidden
    places = [hidden.after, *(after for after, _ in hidden.further_levels)]
    assert len(places) == len({float(place.scale) for place in places}) == len(made.options.anchors.strides) > 1
    with pytest.raises(InputError, match="there is no image to calibrate with"):
        calibrated(net, NORMALISE, [])
    with pytest.raises(InputError, match=r"int8: the norm .* cannot be folded"):
        calibrated(detector("panoptic", "body.normalization_mode=syncbn+gn", "body.gn_groups=4"), NORMALISE, [IMAGE])


def test_without_torchao(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer", None)
    with pytest.raises(InputError, match=r"int8 packages need torchao .*pip install 'seamseg\[export\]'"):
        integer_form(nn.Conv2d(1, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "free"), [("panoptic", False), ("detection", True)])
def test_a_package(kind, free, tmp_path):
    net = network(kind)
    limits = (None, 128) if free else (SIZE, 1)
    stated = ExportedMetadata(kind, "", CLASSES, *limits, part="dense", precision="int8", mean=MEAN, std=STD)
    size = (256, 384) if free else SIZE
    path = tmp_path / "net.pt2"
    aoti.write_package(module_of(net, "dense"), path, stated, size)
    assert read_package_metadata(path).precision == "int8"
    image, valid = picture(size)
    with torch.no_grad():
        wanted = [value.float() for value in module_of(net, "dense")(image, valid)]
    session = PackageSession(path)
    found = session.run(session.exported.extra["outputs"], {"image": image.numpy(), "size": valid.numpy()})
    # other kernels, on a deep network of noise
    assert_near([torch.from_numpy(value).float() for value in found], wanted, 0.05)


# ONNX files of networks trained for int8


class Small(nn.Module):
    """A layer of each sort, and an output layer."""

    def __init__(self):
        super().__init__()
        self.body = NormSequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), InPlaceABN(8), nn.MaxPool2d(2))
        self.block = ResidualBlock(8, (16, 16), InPlaceABN, stride=2)
        self.up = NormSequential(nn.ConvTranspose2d(16, 8, 2, stride=2, bias=False), InPlaceABN(8))
        self.cls = nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.cls(self.up(self.block(self.body(x))))


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
    net = Small().eval()
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
