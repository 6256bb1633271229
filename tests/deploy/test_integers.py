"""int8 packages: the layers that are compiled to integer kernels compute what the training simulates."""

import sys

import pytest
import torch
from support.exported import MEAN, SIZE, STD, detector, picture, read_package_metadata
from support.semantic_networks import semantic_net
from torch import nn

from seamseg.data.transforms import Normalise
from seamseg.deploy import aoti
from seamseg.deploy.integers import calibrated, integer_form
from seamseg.deploy.network import export_net
from seamseg.formats.exported import ExportedMetadata
from seamseg.formats.metadata import Metadata
from seamseg.inference.package import PackageSession
from seamseg.models.folding import fold_abn
from seamseg.models.quantised import QuantisedConv2d, QuantisedLayer, is_quantised
from seamseg.utils.errors import InputError, SeamsegError

CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))
NORMALISE = Normalise(MEAN, STD)
IMAGE = picture()[0][0].permute(1, 2, 0).numpy()


def network(kind, *overrides):
    """A small network that simulates int8 arithmetic."""
    net = fold_abn(semantic_net()) if kind == "semantic" else detector(kind, *overrides)
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
@pytest.mark.parametrize(("kind", "free"), [("panoptic", False), ("detection", True), ("semantic", False)])
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


@pytest.mark.slow
def test_a_package_that_would_compute_in_float_is_refused(tmp_path, monkeypatch):
    """Without `fuse_pooling` the convolution after the max pooling stays in float."""
    monkeypatch.setattr(aoti, "fuse_pooling", lambda program: None)
    net = network("panoptic")
    stated = ExportedMetadata("panoptic", "", CLASSES, SIZE, 1, part="dense", precision="int8")
    with pytest.raises(SeamsegError, match=r"the compiler computes \d+ of \d+ quantised layers in int8"):
        aoti.write_package(module_of(net, "dense"), tmp_path / "net.pt2", stated, SIZE)
    assert list(tmp_path.iterdir()) == []
