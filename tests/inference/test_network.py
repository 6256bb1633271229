"""Networks of torch: their class maps stay on the GPU until they are merged there."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from support.host_reads import HostReads

import seamseg
from seamseg import fusion
from seamseg.data.images import open_image
from seamseg.inference import network
from seamseg.inference.images import network_input
from seamseg.models.panoptic import PanopticNet
from seamseg.validation.metrics import CustomMetrics

pytestmark = pytest.mark.usefixtures("narrow")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def both(monkeypatch):
    """Call a function with predictions of a device that merges, then with the same ones merged by the CPU.

    Returns both results, and the number of maps that were merged on the device.
    """
    kept, merged = {}, Counter()
    merge = fusion._merge_tensors

    def remembered(forward):
        def found(net, images, *arguments, **options):
            key = forward, b"".join(image.cpu().numpy().tobytes() for image in images)
            if key not in kept or "segment" in options:
                kept[key] = forward(net, images, *arguments, **options)
            return kept[key]

        return found

    def run(function, device):
        def counted(*arguments):
            merged[device] += 1
            return merge(*arguments)

        for owner, name in ((PanopticNet, "predict"), (network, "predict_augmented")):
            monkeypatch.setattr(owner, name, remembered(getattr(owner, name)))
        monkeypatch.setattr(fusion, "_merge_tensors", counted)
        with monkeypatch.context() as patch:
            if device == "cpu":
                patch.setattr(fusion, "_has_kernels", lambda p: isinstance(p.scores, torch.Tensor))
            found = function("device")
        with monkeypatch.context() as patch:
            patch.setattr(fusion, "_has_kernels", lambda _: False)
            on_cpu = function("cpu")
        return found, on_cpu, merged[device]

    return run


@pytest.fixture
def photos(micro, tmp_path):
    """Photos of the network's size, and of two others."""
    folder = tmp_path / "photos"
    folder.mkdir()
    street = Image.open(micro / "img" / "val0.png")
    for number, size in enumerate([(96, 64), (200, 140), (70, 90)]):
        street.resize(size).save(folder / f"{number}.png")
    street.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "3.png")
    return folder


@pytest.mark.parametrize("device", DEVICES)
def test_evaluate_gives_the_scores_of_the_cpu(both, micro, micro_run, tmp_path, seamseg_main, monkeypatch, device):
    add = CustomMetrics.add

    def added(self, item, prediction):
        assert prediction.semantic_on_gpu is None, "metrics may keep it"
        return add(self, item, prediction)

    monkeypatch.setattr(CustomMetrics, "add", added)

    def scores(name):
        words = ["--device", device, "--quiet", "--ap", "--json", tmp_path / name, "--out", tmp_path / f"{name}.out"]
        assert seamseg_main("evaluate", micro_run, micro, *words) == 0
        pictures = {p.name: p.read_bytes() for p in (tmp_path / f"{name}.out").rglob("*.png")}
        return json.loads((tmp_path / name).read_text()), pictures

    found, wanted, merged = both(scores, device)
    assert found == wanted
    assert merged == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"tta": "flip,1.0"}], ids=["plain", "views"])
def test_results_of_load_are_those_of_the_cpu_and_keep_no_memory_of_the_gpu(both, micro_run, photos, device, options):
    def results(name):
        model = seamseg.load(micro_run, device, min_stuff_area=0, **options)
        return model.predict(sorted(photos.iterdir()), batch_size=2)

    found, wanted, merged = both(results, device)
    assert merged == 4
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.id_map, other.id_map)
        assert one.segments == other.segments
        assert one.prediction.semantic_on_gpu is None
        np.testing.assert_array_equal(one.prediction.semantic, other.prediction.semantic)
        assert pickle.loads(pickle.dumps(one)).segments == one.segments


def test_each_part_of_a_prediction_is_downloaded_once(micro_run, photos, monkeypatch):
    model = seamseg.load(micro_run, "cpu", min_stuff_area=0)
    image = open_image(photos / "1.png")
    monkeypatch.setattr(fusion, "_has_kernels", lambda p: isinstance(p.scores, torch.Tensor))
    with HostReads() as reads:
        (prediction,) = model.raw([network_input(image, model.input_size)])
        result = model.result(prediction, (image.height, image.width))
        result.with_photo(None, prediction)
    places = [place.split(": ")[1] for place in reads.places.elements() if place.startswith("cpu: ")]
    found = Counter(place.partition(":")[0] for place in places)
    assert found == {"predictions.py": 5, "fusion.py": 1}, str(reads)
