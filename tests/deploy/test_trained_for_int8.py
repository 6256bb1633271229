"""The int8 file of a network trained for int8 computes what the training simulated."""

import numpy as np
import onnx
import pytest
import torch
from support.exported import MEAN, SIZE, STD, detector, picture
from support.networks import randomise
from support.semantic_networks import semantic_net
from torch import nn

from seamseg.deploy.network import export_net
from seamseg.deploy.onnx import write_onnx
from seamseg.deploy.quantize import executed_operators, quantise_file
from seamseg.formats.exported import ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.onnx_engines import open_onnx
from seamseg.models.backbones.residual import ResidualBlock
from seamseg.models.folding import fold_abn, fold_layers
from seamseg.models.quantised import choosing_ranges, quantised
from seamseg.ops.norm import InPlaceABN, NormSequential
from seamseg.ops.quantisation import FakeQuantise

CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))


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


def simulated(folded, values):
    """The trainable form of a folded network, with the ranges of an input; in evaluation mode."""
    net = quantised(folded).eval()
    with choosing_ranges(net), torch.no_grad():
        net(values)
    return net


def write(net, kind, folder, size, part="all", free=False):
    """The exported int8 file, and the module that it is an export of; with `free`, its input has any size."""
    normalisation = (None, None) if kind == "classification" else (MEAN, STD)
    module = export_net(net, *normalisation, part, standard_ops=True)
    path = folder / "int8.onnx"
    stated = ExportedMetadata(kind, "", CLASSES, None if free else size, 128 if free else 1, part=part)
    write_onnx(module, folder / "float.onnx", stated, (256, 384) if free else size)
    stated = quantise_file(folder / "float.onnx", path, None)
    assert stated.precision == "int8"
    assert stated.extra == {"trained_for_int8": True}
    return path, module


def run(path, inputs):
    return open_onnx(path).run(None, inputs)


@torch.no_grad()
def float_and_simulated(net, module, inputs):
    """The outputs without rounding, and with."""
    rounded = [value.numpy().copy() for value in module(*inputs)]
    places = [place for place in net.modules() if isinstance(place, FakeQuantise)]
    for place in places:
        place.histogram = _Nothing()
    try:
        return [value.numpy().copy() for value in module(*inputs)], rounded
    finally:
        for place in places:
            place.histogram = None


class _Nothing:
    def add(self, values):
        pass


def assert_same_scales(path, net):
    """Each place in the network where values are rounded is one in the file, with its scale and zero point."""
    model = onnx.load(path)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    found = {tuple(float(constants[name]) for name in node.input[1:]) for node in nodes}
    # the dense part has no ROI head
    named = [(name, place) for name, place in net.named_modules() if isinstance(place, FakeQuantise)]
    places = [place for name, place in named if not name.startswith("roi_head.")]
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
    net = simulated(fold_layers(net), image)
    path, module = write(net, "classification", tmp_path, (32, 48))
    operators = executed_operators(onnx.load(path))
    assert operators["QLinearConv"] == 5
    assert operators["Conv"] + operators["FusedConv"] == 1
    assert operators["ConvTranspose"] == 0
    assert_same_scales(path, net)
    plain, rounded = (values[0] for values in float_and_simulated(net, module, [image]))
    (found,) = run(path, {"image": image.numpy()})
    step = float(net.up[0].cells.activated.scale)
    # a value halfway between two levels may be rounded to either
    assert np.abs(found - rounded).mean() < step / 50
    assert np.abs(found - plain).mean() > step / 4


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "free"), [("panoptic", False), ("detection", True), ("semantic", False)])
def test_network(kind, free, tmp_path):
    net = quantised(semantic_folded() if kind == "semantic" else detector(kind)).eval()
    image, size = picture(valid=SIZE)
    module = export_net(net, MEAN, STD, "all")
    with choosing_ranges(net), torch.no_grad():
        module(image, size)
    path, module = write(net, kind, tmp_path, SIZE, "dense", free)
    assert executed_operators(onnx.load(path))["QLinearConv"] > 15
    assert_same_scales(path, net)
    plain, rounded = float_and_simulated(net, module, [image, size])
    found = run(path, {"image": image.numpy(), "size": size.numpy()})
    for a, b, c in zip(found, rounded, plain, strict=True):
        assert a.shape == b.shape
        # a value halfway between two levels may be rounded to either, and a deep network of noise amplifies that:
        # the errors are not equal, but correlated, and of one size
        assert np.corrcoef((a - c).flatten(), (b - c).flatten())[0, 1] > 0.3
        assert 0.7 < np.abs(a - c).mean() / np.abs(b - c).mean() < 1.4


@pytest.mark.slow
def test_optional_layers_are_trained():
    """Convolutions of the box branch in int8, the layers that refine masks in float; all of them learn."""
    net = quantised(detector("panoptic", "roi.box_convs=2", "roi.mask_refinement=points"))
    module = export_net(net.eval(), MEAN, STD, "all")
    with choosing_ranges(net), torch.no_grad():
        module(*picture(valid=SIZE))
    head = net.roi_head
    assert head.box_conv[0].before is not None
    assert head.fc.first.after is not None
    assert not any(isinstance(layer, FakeQuantise) for layer in head.refinement.modules())
    outputs = dict(zip(module.output_names, module(*picture(valid=SIZE)), strict=True))
    assert outputs["count"] > 2
    sum(outputs[name].sum() for name in ("boxes", "scores", "mask_logits")).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name


def semantic_folded():
    return fold_abn(semantic_net())
