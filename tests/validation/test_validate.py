"""Validation and `evaluate_model`: native size, exactness, and models that do not fit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import make_dataset

from seamseg.config import load_config
from seamseg.data.input_size import InputSize
from seamseg.formats.metadata import read_metadata, write_metadata
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import build_predictor
from seamseg.predictions import Prediction
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import EvaluationOptions, _input_size, evaluate_model
from seamseg.validation.validator import Validator

pytestmark = pytest.mark.usefixtures("narrow")


class Oracle(torch.nn.Module):
    """A network that returns the classes of the ground truth at native size as semantic map, and no detections."""

    kind = "panoptic"

    def __init__(self):
        super().__init__()
        self.modes = []

    def predict(self, images):
        self.modes.append(self.training)
        predictions = []
        for image in images:
            sky = image[2] > image[0] + 1  # in these scenes the sky is blue and the road is grey
            empty, size = torch.empty(0), tuple(sky.shape)
            masks = empty.reshape(0, 28, 28)
            predictions.append(Prediction(empty.reshape(0, 4), empty.long(), empty, masks, (~sky).long(), size))
        return predictions


@pytest.fixture
def flat(tmp_path):
    """Images of sky and road without cars, larger than the network's input."""
    data = make_dataset(tmp_path / "flat", [0], [0, 0, 0])
    for name in ("val0", "val1", "val2"):
        ids = np.ones((160, 240), np.uint8)
        ids[80:] = 2
        rgb = np.full((160, 240, 3), (60, 60, 60), np.uint8)
        rgb[:80] = (40, 120, 240)
        Image.fromarray(ids).save(data / "msk" / f"{name}.png")
        Image.fromarray(rgb).save(data / "img" / f"{name}.png")
    metadata = read_metadata(data / "metadata.bin")
    images = [replace(i, size=(160, 240)) if i.id.startswith("val") else i for i in metadata.images]
    write_metadata(data / "metadata.bin", replace(metadata, images=images))
    return data


def test_scores_are_computed_at_native_size(flat, micro_config):
    config = load_config(micro_config)
    validator = Validator.open(flat, "val", config, World(), quiet=True)
    seen = []
    net = Oracle().train()
    scores = validator(net, lambda one: seen.append((one.item.id, one.prediction.size, one.result.size)))
    assert seen == [(f"val{i}", (64, 96), (160, 240)) for i in range(3)]
    assert scores.PQ_stuff == pytest.approx(1.0, abs=0.02)
    assert scores.n_images == 3
    assert net.modes == [False, False]
    assert net.training
    assert scores.best == scores.PQ
    separate = replace(config, general=replace(config.general, eval_mode="separate"))
    assert replace(validator, config=separate)(net).best == scores.mIoU
    assert replace(scores, PQ=math.nan).best == 0.0


def test_legacy_scores_are_computed_at_network_size(flat, micro_config):
    validator = Validator.open(flat, "val", load_config(micro_config), World(), legacy=True, quiet=True)
    seen = []
    scores = validator(Oracle(), lambda one: seen.append(one.result.size))
    assert seen == [(64, 96)] * 3
    assert scores.PQ_stuff == pytest.approx(1.0, abs=0.05)
    assert pytest.approx(2 / 3 * scores.PQ_stuff) == scores.PQ  # cars never occur and count as 0


@pytest.mark.parametrize(("legacy", "size"), [(False, InputSize(longest_size=90)), (True, InputSize(64))])
def test_legacy_scores_use_the_size_of_the_original(micro_config, legacy, size):
    config = load_config(micro_config, overrides=("dataloader.longest_size=90", "dataloader.shortest_size=64"))
    opened = SimpleNamespace(config=config, input_size=lambda options: options.input_size(config))
    assert _input_size(opened, EvaluationOptions(legacy=legacy)) == size
    for given in (InferenceOptions(size=32), InferenceOptions(shortest_size=32, longest_max_size=40)):
        asked = EvaluationOptions(legacy=legacy, inference=given)
        assert _input_size(opened, asked) == given.input_size(config)


@pytest.mark.parametrize(
    ("legacy", "tiles", "used"), [(False, "auto", "auto"), (True, "auto", "off"), (True, 512, 512)]
)
def test_legacy_scores_use_no_tiles_unless_asked(micro, micro_run, monkeypatch, legacy, tiles, used):
    built = []

    def build(opened, options, size):
        built.append(options.tiles)
        return build_predictor(opened, options, size)

    monkeypatch.setattr("seamseg.validation.evaluate.build_predictor", build)
    options = EvaluationOptions(device="cpu", quiet=True, legacy=legacy, inference=InferenceOptions(tiles=tiles))
    assert evaluate_model(micro_run, micro, options).scores.n_images == 3
    assert built == [used]


def test_models_and_data_that_do_not_fit(micro, micro_run, tmp_path):
    other = make_dataset(tmp_path / "data", [1], [1])
    metadata = read_metadata(other / "metadata.bin")
    lists = {"palette": [(1, 1, 1), *metadata.palette], "original_ids": [1, *metadata.original_ids]}
    more = replace(metadata, num_stuff=3, categories=["a", *metadata.categories], **lists)
    swapped = replace(metadata, categories=["road", "sky", "car"])
    fits = InferenceOptions(overrides=["dataloader.val_set="])
    for data, classes, options, message in (
        (other, more, {}, r"3 stuff and 1 thing classes, but .*was trained on 2 and 1.*`class_table=TABLE`"),
        (other, more, {"meta": other / "metadata.bin"}, "was trained on 3 classes, the metadata lists 4"),
        (other, swapped, {}, r"class 0 is 'sky' in .* and 'road' in .* another order; .*`class_table=names`"),
        (micro, metadata, {"split": "test"}, "no split 'test'"),
        (micro, metadata, {"inference": fits}, "name a split with `split=NAME`"),
    ):
        write_metadata(other / "metadata.bin", classes)
        with pytest.raises(InputError, match=message):
            evaluate_model(micro_run, data, EvaluationOptions(device="cpu", quiet=True, **options))
    write_metadata(other / "metadata.bin", replace(metadata, categories=["sky", "strada", "car"]))
    with pytest.warns(UserWarning, match="class 1 is 'road' in .* and 'strada' in"):
        evaluate_model(micro_run, other, EvaluationOptions(device="cpu", quiet=True))
    Image.new("L", (10, 10)).save(other / "msk" / "val0.png")
    write_metadata(other / "metadata.bin", metadata)
    with pytest.raises(InputError, match=r"val0\.png: the mask is 10 x 10 pixels"):
        evaluate_model(micro_run, other, EvaluationOptions(device="cpu", quiet=True))
