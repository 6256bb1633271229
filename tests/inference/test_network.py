"""Networks of torch: their class maps stay on the GPU until they are merged there."""

import pickle
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from support.host_reads import HostReads

import seamseg
from seamseg import fusion
from seamseg.inference import network
from seamseg.inference.images import network_input
from seamseg.maps.images import open_image
from seamseg.models.panoptic import PanopticNet

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def photos(micro, tmp_path):
    """Images of the network's size, and of two others."""
    street = Image.open(micro / "img" / "val0.png")
    for number, size in enumerate([(96, 64), (200, 140), (70, 90)]):
        street.resize(size).save(tmp_path / f"{number}.png")
    street.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "3.png")
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("options", [{}, {"tta": "flip,1.0"}], ids=["plain", "views"])
def test_results_of_load_are_those_of_the_cpu_and_keep_no_memory_of_the_gpu(
    micro_run, photos, device, options, monkeypatch
):
    """Of the same predictions, merged on the device and by the CPU."""
    kept, merge = {}, mock.Mock(wraps=fusion._merge_tensors)
    monkeypatch.setattr(fusion, "_merge_tensors", merge)

    def remembered(forward):
        def found(net, images, *arguments, **options):
            key = forward, b"".join(image.cpu().numpy().tobytes() for image in images)
            if key not in kept or "segment" in options:
                kept[key] = forward(net, images, *arguments, **options)
            return kept[key]

        return found

    for owner, name in ((PanopticNet, "predict"), (network, "predict_augmented")):
        monkeypatch.setattr(owner, name, remembered(getattr(owner, name)))
    model = seamseg.load(micro_run, device, min_stuff_area=0, **options)
    if device == "cpu":
        monkeypatch.setattr(fusion, "_has_kernels", lambda p: isinstance(p.scores, torch.Tensor))
    found = model.predict(photos, batch_size=2)
    assert merge.call_count == 4
    monkeypatch.setattr(fusion, "_has_kernels", lambda _: False)
    for one, other in zip(found, model.predict(photos, batch_size=2), strict=True):
        np.testing.assert_array_equal(one.id_map, other.id_map)
        assert one.segments == other.segments
        assert one.prediction.semantic_on_gpu is None
        np.testing.assert_array_equal(one.prediction.semantic, other.prediction.semantic)
        assert pickle.loads(pickle.dumps(one)).segments == one.segments


def test_each_part_of_a_prediction_is_downloaded_once(micro_run, photos, monkeypatch):
    model = seamseg.load(micro_run, "cpu", min_stuff_area=0)
    image = open_image(photos[1])
    monkeypatch.setattr(fusion, "_has_kernels", lambda p: isinstance(p.scores, torch.Tensor))
    with HostReads() as reads:
        (prediction,) = model.raw([network_input(image, model.input_size)])
        result = model.result(prediction, (image.height, image.width))
        result.with_image(None, prediction)
    places = [place.split(": ")[1] for place in reads.places.elements() if place.startswith("cpu: ")]
    found = Counter(place.partition(":")[0] for place in places)
    assert found == {"maps/predictions.py": 5, "fusion.py": 1}, str(reads)
