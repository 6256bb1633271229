"""Networks of transformers, trained: targets, weights by class name, resume, processes, prediction and export."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.interruptions import loss_lines, result
from support.processes import launch
from support.tiny_transformers import save

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import load_config
from seamseg.contrib.foreign.families import FAMILIES as KNOWN
from seamseg.contrib.foreign.transformers_model import load_network
from seamseg.models.build import build_network
from seamseg.structures import Batch, PackedSequence
from seamseg.training.run import TrainingOptions, completed, run_training
from seamseg.utils.errors import InputError

NAMES = ["car", "sky", "dog"]
"""Of the columns of the networks; the data set has sky, road, car."""
FAMILIES = ["mask2former", "maskformer", "eomt", "eomt_dinov3"]
CONFIG = """
[general]
components = seamseg.contrib.recipes.transformers
network = transformers
log_interval = 1
[network transformers]
model = {model}
[optimizer]
type = adamw
lr = 0.001
momentum = 0.9
[scheduler]
epochs = 2
burn_in_steps = 0
[dataloader]
shortest_size = 64
longest_max_size = 96
crop_size = (64, 64)
random_flip = yes
random_scale = (0.8, 1.5)
train_batch_size = 2
num_workers = 0
train_set = train
val_set = val
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("transformers")
    return {family: save(family, root / family, NAMES) for family in FAMILIES}


@pytest.fixture
def options(folders, tmp_path, micro):
    def make(family, run="run", *overrides, **others):
        path = tmp_path / f"{family}.ini"
        path.write_text(CONFIG.format(model=folders[family]))
        return TrainingOptions(path, micro, tmp_path / run, overrides=overrides, device="cpu", **others)

    return make


def build(given, num_stuff=2, num_thing=1):
    config = completed(load_config(given.config, None, given.overrides))
    return build_network(config, num_stuff, num_thing).network


@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f != "eomt")) for f in FAMILIES])
def test_each_family_is_trained_and_predicts(family, options, tmp_path):
    given = options(family, "run", "scheduler.epochs=1", "optimizer.ema=.5")
    run_training(given)
    lines = loss_lines(tmp_path / "run")
    assert len(lines) == 2
    assert all("  query " in line for line in lines)
    log = (tmp_path / "run" / "training.log").read_text()
    assert "2 of 3 classes by name; random for road" in log
    state = load_snapshot(tmp_path / "run" / "model_last.pth.tar")
    assert "ema" in state.state_dict
    model = seamseg.load(tmp_path / "run", device="cpu", score_threshold=0)
    assert model.network.averaged
    found = model.predict(Image.new("RGB", (97, 63), (90, 150, 220)))
    assert found.id_map.shape == (63, 97)
    assert found.prediction.queries is not None
    assert {segment.name for segment in found.segments} <= {"sky", "road", "car"}
    if "eomt" in family:
        assert not model.network.net.attn_mask_probs.any()


def train_in_two(rank, join, given):
    join()
    run_training(given)
    if rank == 0:  # which writes it
        net = load_snapshot(given.log_dir / "model_last.pth.tar").state_dict["network"]
        assert all(bool(torch.isfinite(value).all()) for value in net.values() if value.is_floating_point())


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_resume_to_the_bit(options, tmp_path):
    keys = ("dataloader.train_batch_size=1", "general.snapshot_interval=1", "general.snapshot_keep=9")
    given = options("mask2former", "straight", *keys, "optimizer.ema=.9")
    launch(train_in_two, 2, given, seconds=400)
    first = sorted((tmp_path / "straight" / "snapshots").iterdir())[0]
    alone = {"config": tmp_path / "straight" / "config.ini", "overrides": ("network transformers.model=",)}
    again = replace(given, log_dir=tmp_path / "again", resume=first, **alone)
    launch(train_in_two, 2, again, seconds=400)
    assert result(tmp_path / "again") == result(tmp_path / "straight")


def test_weights_of_classes_are_copied_by_name(options, folders):
    network = build(options("mask2former"))
    torch.manual_seed(0)
    line = network.initialise(["sky", "road", "car"])
    assert "2 of 3 classes by name; random for road" in line
    source = load_network(folders["mask2former"], KNOWN["mask2former"]).state_dict()
    own = network.net.state_dict()
    (name,) = [key for key in own if key.endswith("class_predictor.weight")]
    for row, column in ((0, 1), (2, 0), (3, 3)):  # sky, car, no object
        assert torch.equal(own[name][row], source[name][column])
    assert not any(torch.equal(own[name][1], row) for row in source[name])
    others = [key for key in own if "class_predictor" not in key and not key.startswith("criterion.")]
    assert all(torch.equal(own[key], source[key]) for key in others)
    plain = build(options("mask2former", "x", "network transformers.pretrained=no"))
    assert plain.initialise(["sky", "road", "car"]) is None


def test_targets_are_things_and_classes_of_stuff(options):
    network = build(options("mask2former"))
    ids = torch.zeros(2, 4, 6, dtype=torch.long)
    ids[0, :2], ids[0, 2:], ids[0, 0, 0] = 1, 2, 0
    ids[0, 1:3, 1:3], ids[0, 3, 5] = 3, 5
    ids[0, 2, 4:] = 6  # a crowd
    ids[1, 2:, 2:5] = 4  # below another layer, over the road
    categories = torch.tensor([255, 0, 1, 2, 2, 0, 2])
    crowd = torch.tensor([0, 0, 0, 0, 0, 0, 1], dtype=torch.uint8)
    image = torch.zeros(3, 4, 6)
    batch = Batch(
        PackedSequence([image]), PackedSequence([ids]), PackedSequence([categories]), PackedSequence([crowd]),
        PackedSequence([torch.zeros(7, 4)]), ["a"], [(4, 6)],
    )  # fmt: skip
    masks, classes = network._targets(batch, 0, (5, 8))
    found = {(int(c), tuple(map(tuple, m.nonzero().tolist()))) for m, c in zip(masks, classes)}

    def where(*numbers):
        return tuple(map(tuple, np.argwhere(np.isin(ids.numpy(), numbers).any(0)).tolist()))

    assert found == {(0, where(1, 5)), (1, where(2)), (2, where(3)), (2, where(4))}
    assert masks.shape == (4, 5, 8)
    empty = replace(
        batch, images=PackedSequence([torch.rand(3, 64, 64)]), masks=PackedSequence([torch.zeros(2, 64, 64).long()])
    )
    masks, classes = network._targets(empty, 0, (64, 64))
    assert masks.shape == (0, 64, 64)
    loss, count = network.loss(empty)["query_loss"]
    loss.backward()
    assert torch.isfinite(loss)
    assert count == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": ""}, "model is required: the folder of a network"),
        ({"model": "nothing"}, "nothing: no such model"),
        ({"architecture": "{"}, "architecture: not JSON"),
        ({"architecture": "{}"}, "it has no model_type"),
        ({"architecture": json.dumps({"model_type": "detr"})}, "networks of type detr are not trained here"),
        ({"architecture": json.dumps({"model_type": "mask2former", "auto_map": {}})}, "auto_map"),
    ],
)
def test_what_is_refused(keys, message, options):
    given = options("mask2former", "run", *(f"network transformers.{name}={value}" for name, value in keys.items()))
    if "architecture" in keys:
        given = replace(given, overrides=(*given.overrides, "network transformers.model="))
    with pytest.raises(InputError, match=message) as error:
        run_training(given)
    assert "\n" not in str(error.value)


def test_images_beyond_the_square(options):
    with pytest.raises(InputError, match=r"an image has 96 pixels.*square of 64: set crop_size = \(64, 64\)"):
        run_training(options("eomt", "run", "dataloader.crop_size=", "dataloader.random_scale="))
