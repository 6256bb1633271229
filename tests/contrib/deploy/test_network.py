"""The module for export computes what the eager network does, whatever the picture, and can be traced."""

import pytest
import torch
from support.exported import DETECTORS, MEAN, STD, assert_same, classifier, detector, eager, exported_net, picture
from support.onnx_scenes import OUTPUTS
from support.small_models import semantic_net

from seamseg.contrib.deploy.network import dynamic_shapes, export_net, failures_in_one_line, trace
from seamseg.models.folding import for_inference
from seamseg.ops import fused
from seamseg.results import result_of
from seamseg.utils.errors import SeamsegError


@torch.no_grad()
def run(net, image, size):
    return dict(zip(net.output_names, net(image, size), strict=True))


@pytest.mark.parametrize("standard_ops", [False, True])
@pytest.mark.parametrize("kind", [*DETECTORS, "semantic"])
def test_outputs_are_those_of_the_eager_network(kind, standard_ops):
    net = exported_net(kind, standard_ops)
    assert net.output_names == OUTPUTS[kind]
    assert {*result_of(kind).outputs} == {*OUTPUTS[kind]} - {"mask_logits"}
    found, wanted = run(net, *picture()), eager(net, *picture())
    assert_same(found, wanted, exact=kind != "semantic")
    if kind != "semantic":
        assert 2 <= len(wanted["classes"]) < net.rows
        assert len(wanted["classes"].unique()) > 1


@pytest.mark.parametrize(
    ("overrides", "rows", "counts"),
    [
        (("roi.max_predictions=200", "roi.nms_threshold=0.6"), 120, (21, 119)),
        (("roi.max_predictions=16", "roi.nms_threshold=0.6"), 16, (16, 16)),
        (("rpn.min_size=30", "rpn.num_pre_nms_val=50"), 20, (1, 19)),
        (("roi.score_threshold=1.0",), 20, (0, 0)),
        (("rpn.num_post_nms_val=3", "rpn.num_pre_nms_val=2"), 9, (1, 9)),
        (("rpn.num_post_nms_val=16", "rpn.num_pre_nms_val=12", "rpn.nms_threshold=0.01"), 20, (1, 20)),
    ],
)
def test_number_of_detections(overrides, rows, counts):
    net = export_net(detector("instance_seg", *overrides), MEAN, STD)
    found, wanted = run(net, *picture()), eager(net, *picture())
    assert_same(found, wanted, exact=True)
    assert found["boxes"].shape == (rows, 4)
    count = int(found["count"])
    assert counts[0] <= count <= counts[1]
    assert (found["classes"][:count].diff() < 0).any() == (rows == 16), "by class, unless some are left out"


def test_a_classifier():
    images = torch.randn(2, 3, 64, 64)
    net = exported_net("classification")
    with torch.no_grad():
        wanted = classifier()(images)
        (found,) = net(images)
    assert found.shape == (2, 7)
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()
    height = dynamic_shapes(net, 32, (60, 4096))["image"][2]
    assert (height.min, height.max) == (64, 4096)


def test_a_failure_is_300_characters_of_its_first_cause():
    with pytest.raises(SeamsegError, match=r"^no export \(ValueError: (x ){144}\)$"), failures_in_one_line("no export"):
        raise RuntimeError("outer") from ValueError("x " * 200)


@pytest.mark.parametrize("kind", ["panoptic", "detection", "semantic"])
def test_dense_part(kind):
    net = exported_net(kind, part="dense")
    found, image = run(net, *picture()), net.normalise(*picture())
    with torch.no_grad():
        dense = net.net.dense(image)
    if kind == "semantic":
        assert list(found) == ["semantic_logits"]
        assert torch.equal(found["semantic_logits"], dense)
        return
    assert torch.equal(found["obj_logits"], dense.obj_logits)
    assert torch.equal(found["bbx_logits"], dense.bbx_logits)
    assert [torch.equal(found[f"level{i}"], x) for i, x in enumerate(dense.levels)] == [True] * len(dense.levels)
    assert ("semantic_logits" in found) == (kind == "panoptic")


@pytest.mark.slow
def test_a_traced_network_of_free_size():
    net = exported_net("panoptic")
    program = trace(net, (128, 320), 64, (64, 4096))
    for inputs in (picture((320, 384), (300, 384)), picture((128, 64), (120, 64))):
        with torch.no_grad():
            found = program.module()(*inputs)
        assert_same(dict(zip(net.output_names, found, strict=True)), eager(net, *inputs))
    operators = {str(node.target) for node in program.graph.nodes if "seamseg" in str(node.target)}
    names = ("box_filter_pool", "nms_fixed", "roi_sampling", "upsample_argmax")
    assert operators == {f"seamseg.{name}.default" for name in names}


@pytest.mark.slow
def test_a_traced_network_with_winograd_convolutions(monkeypatch):
    # those of small networks have too few channels and tiles to be faster
    monkeypatch.setattr(fused, "LEAST_CHANNELS", 16)
    monkeypatch.setattr(fused, "_LEAST_WORK", 0)
    net = export_net(for_inference(semantic_net("sem.hidden_channels=16"), torch.device("cpu")), MEAN, STD)
    assert sum(isinstance(module, fused.WinogradConv2d) for module in net.modules()) > 4
    program = trace(net, (256, 288), 32, (256, 4096))
    assert not any("winograd" in str(node.target) for node in program.graph.nodes)
    calls = []
    op = fused.winograd_input
    monkeypatch.setattr(fused, "winograd_input", lambda *arguments: calls.append(1) or op(*arguments))
    inputs = picture((320, 352), (320, 340))
    found = dict(zip(net.output_names, program.module()(*inputs), strict=True))
    assert not calls
    assert_same(found, run(net, *inputs))
    assert calls


def test_probabilities_are_rounded_down():
    net = exported_net("semantic")
    logits = torch.tensor([[0, 99], [0, 0]]), torch.tensor([[0, 0], [0, 0]]) + torch.tensor(3.0).log()
    net.net.dense = lambda image: torch.stack(logits)[None]
    _, probability = net(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.tensor([2, 2]))
    assert probability.tolist() == [[191, 255], [191, 191]]
