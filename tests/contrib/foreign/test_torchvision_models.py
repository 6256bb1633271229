"""Detectors of torchvision: the same detections as there, with dense classes."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from support.tiny_transformers import refusal
from torchvision.models import detection

import seamseg
from seamseg.results import Detections
from seamseg.utils.errors import SeamsegError

NAMES = ("maskrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2")
SMALL = {"device": "cpu", "shortest_size": 64}


@pytest.fixture(scope="module")
def nets():
    """Networks with random weights of a fixed seed that find something, among few proposals, which take most time."""
    few = {"rpn_post_nms_top_n_test": 60, "box_detections_per_img": 20}
    with pytest.MonkeyPatch.context() as patch:
        made = {}
        for name in NAMES:
            patch.setattr(detection, name, partial(getattr(detection, name), **few))
            torch.manual_seed(0)
            made[name] = getattr(detection, name)(weights=None, weights_backbone=None).eval()
            torch.nn.init.normal_(made[name].roi_heads.box_predictor.cls_score.weight, std=0.05)
        yield made


@pytest.fixture(scope="module")
def files(nets, tmp_path_factory):
    root = tmp_path_factory.mktemp("torchvision")
    for name, net in nets.items():
        torch.save(net.state_dict(), root / f"{name}.pth")
    return {name: root / f"{name}.pth" for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_detections_are_those_of_torchvision(nets, files, name):
    predictor = seamseg.load(f"torchvision:{name}?weights={files[name]}", **SMALL)
    assert predictor.kind == ("instance_seg" if name.startswith("mask") else "detection")
    assert (predictor.metadata.num_stuff, predictor.metadata.num_thing) == (0, 80)
    image = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)
    found = predictor.raw([image])[0]
    net = nets[name]
    net.transform.min_size = (70,)  # as it is
    with torch.inference_mode():
        expected = {k: v.numpy() for k, v in net([torch.from_numpy(image).permute(2, 0, 1) / 255])[0].items()}
    categories = detection.MaskRCNN_ResNet50_FPN_Weights.DEFAULT.meta["categories"]
    named = [categories[label] for label in expected["labels"]]
    kept = [k for k, label in enumerate(named) if label != "N/A"]
    assert 0 < len(found.scores) == len(kept)
    order = sorted(kept, key=lambda k: (predictor.metadata.categories.index(named[k]), -expected["scores"][k]))
    np.testing.assert_allclose(found.boxes, expected["boxes"][order][:, [1, 0, 3, 2]], atol=1e-4)
    np.testing.assert_allclose(found.scores, expected["scores"][order], atol=1e-5)
    assert [predictor.metadata.categories[c] for c in found.classes] == [named[k] for k in order]
    assert (found.semantic, found.mask_logits is None) == (None, not name.startswith("mask"))


def test_own_classes(nets, tmp_path):
    state = nets[NAMES[1]].state_dict()
    for layer, rows in (("cls_score", 3), ("bbox_pred", 12)):
        for kind in ("weight", "bias"):
            key = f"roi_heads.box_predictor.{layer}.{kind}"
            state[key] = state[key][:rows].clone()
    torch.save({"model": state}, tmp_path / "own.pth")
    model = f"torchvision:{NAMES[1]}?weights={tmp_path / 'own.pth'}"
    assert "the weights have the labels 1 to 2: give a class list with these ids with `meta=FILE`" in refusal(model)
    classes = tmp_path / "classes.json"
    classes.write_text(json.dumps([{"id": 2, "name": "cup"}, {"id": 1, "name": "dog"}]))
    predictor = seamseg.load(model, meta=classes, **SMALL)
    assert predictor.metadata.categories == ["cup", "dog"]
    assert isinstance(predictor.predict(np.zeros((100, 300, 3), np.uint8)), Detections)
    sizes = seamseg.load(model, meta=classes, device="cpu").input_size
    assert (sizes.of((3000, 4000)), sizes.of((1000, 4000))) == ((800, 1066), (333, 1333))
    assert "`tta` is for networks of seamseg only" in refusal(model, meta=classes, tta="flip")
    assert predictor.network.classes.tolist() == [-1, 1, 0]
    classes.write_text(json.dumps([{"id": 1, "name": "dog"}]))
    words = "must list things with the ids of the network: the weights have the labels 1 to 2"
    assert words in refusal(model, meta=classes)


def test_refusals(files, tmp_path, monkeypatch, capsys):
    model = f"torchvision:{NAMES[0]}"
    (tmp_path / "text.pth").write_text("text")
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    for name, words in (
        ("torchvision:maskrcnn_resnet50", f"did you mean '{model}"),
        ("torchvision:a/b", "malformed: write torchvision:NAME"),
        (f"{model}?weights={tmp_path / 'none.pth'}", "no such file"),
        (f"{model}?weights={tmp_path / 'text.pth'}", "text.pth"),
        (f"{model}?weights={tmp_path / 'other.pth'}", "roi_heads.box_predictor.cls_score.bias is missing"),
        (f"{model}?weights={files[NAMES[1]]}", "the weights are not those of a maskrcnn_resnet50_fpn"),
    ):
        assert words in refusal(name)
    assert "has no effect" in refusal(model, config="x.ini")

    def offline(*_, **__):
        print("Downloading: https://...")
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    words = f"cannot download its weights (no network): name a file, {model}?weights=FILE"
    assert words in refusal(model, SeamsegError)
    assert capsys.readouterr().out == ""
