"""A network of the user as a whole: trained, resumed, validated and predicted with; and refused where it is wrong."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.components import assert_refused, component_file, forget
from support.interruptions import loss_lines, result, signals_at, train_until_done

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.new import template
from seamseg.inference.network import run_by_torch
from seamseg.models.custom import CustomNetwork, WholeNetwork
from seamseg.results import SemanticMap
from seamseg.testing import check_component
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("imported")

PIXELS = template("network", "pixels")
file, _ = component_file("my_pixels.py", PIXELS)


@pytest.fixture
def options(component_options, file, tmp_path):
    (tmp_path / "plain.ini").write_text(
        "[general]\nnetwork = pixels\nmin_stuff_area = 0\nlog_interval = 1\n[optimizer]\nlr = 0.1\n"
        "[scheduler]\nepochs = 2\nburn_in_steps = 0\n"
        "[dataloader]\nshortest_size = 64\nlongest_max_size = 128\ntrain_set = train\nval_set = val\nnum_workers = 0\n"
    )
    return lambda *words, **more: replace(component_options(file, *words, **more), config=tmp_path / "plain.ini")


def test_it_is_trained_resumed_and_predicts(options, file, tmp_path):
    scores = run_training(options("straight", "optimizer.ema=.9", "network pixels.channels=6"))
    lines = loss_lines(tmp_path / "straight")
    assert all("  pixels " in line for line in lines)
    assert scores.validation.PQ_stuff > 0  # stuff, such as the sky
    with signals_at([3, 5]):
        again = options("stopped", "optimizer.ema=.9", "network pixels.channels=6", resume="auto")
        assert train_until_done(again) == 2
    assert result(tmp_path / "stopped") == result(tmp_path / "straight")
    state = load_snapshot(tmp_path / "straight" / "model_last.pth.tar")
    assert {*state.state_dict} >= {"network", "optimizer", "ema"}
    assert state.state_dict["network"]["layers.0.weight"].shape == (6, 3, 7, 7)
    assert [(record.kind, record.name) for record in state.components] == [("network", "pixels")]
    given = {"device": "cpu", "overrides": [f"general.components={file}"]}
    model = seamseg.load(tmp_path / "straight", **given)
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)
    assert model.predict(Image.new("RGB", (300, 200)), tiles=128).id_map.shape == (200, 300)
    for options, message in (
        ({"tta": "flip"}, "`tta` is for networks of body and heads, not for pixels"),
        ({"overrides": [f"general.components={file}", "general.network=seamless"]}, "holds another network than"),
    ):
        with pytest.raises(InputError, match=message):
            seamseg.load(tmp_path / "straight", **{**given, **options})
    forget("my_pixels")
    with pytest.raises(InputError, match=r"network pixels \(my_pixels.py\) is not imported"):
        seamseg.load(tmp_path / "straight", device="cpu")


WITH_IDS = {
    "import Network,": "import Map, Network,",
    'kind = "panoptic"': 'kind, predicts_ids, outputs = "panoptic", True, {"width": Map(values="multiply", scale=1)}',
    "nn.ReLU(),\n            nn.Conv2d(keys": "context.norm(keys.channels),\n            nn.Conv2d(keys",
    "            things = nothing": "            ids = (torch.arange(size[1]) >= size[1] // 2).long().expand(size)\n"
    "            maps = {'ids': ids, 'width': torch.zeros(size) + size[1]}\n"
    "            box = torch.tensor([[0.0, size[1] // 2, size[0], size[1]]])\n            things = nothing",
    "Prediction(*things, classes, size)": "Prediction(box, box[:, 0].long(), box[:, 0] + 0.6, None, classes, size, "
    "maps=maps)",
}
"""Changes of the template to a network of ids of one thing, the right half, and of a map."""


@pytest.mark.slow
def test_ids_maps_norms_and_export(options, file, tmp_path, seamseg_main):
    text = file.read_text()
    for old, new in WITH_IDS.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    given = {"device": "cpu", "overrides": {"general.components": file}}
    run_training(options("run", "scheduler.epochs=1", "body.normalization_mode=gn", "body.gn_groups=4"))
    model = seamseg.load(tmp_path / "run", **given)
    assert type(model.network.net.network.layers[1]).__name__ == "ActivatedGroupNorm"
    with pytest.raises(InputError, match="`tiles=128`: the network pixels predicts ids, which tiles do not share"):
        model.predict(Image.new("RGB", (300, 200)), tiles=128)

    photo, words = tmp_path / "photo.png", ("--quiet", "--components", file)
    Image.new("RGB", (192, 128)).save(photo)
    assert seamseg_main("export", tmp_path / "run", tmp_path / "net.onnx", *words) == 0
    for name, network, more in (("own", tmp_path / "run", words), ("file", tmp_path / "net.onnx", ("--quiet",))):
        out = tmp_path / name
        assert seamseg_main("predict", network, photo, out, "--format", "width", "--workers", "0", *more) == 0
        assert (np.array(Image.open(out / "photo_width.png")) == 192).all()
        result = (model if name == "own" else seamseg.load(network)).predict(photo)
        (thing,) = (segment for segment in result.segments if segment.isthing)
        assert (result.mask(thing) == (np.arange(192) >= 96)).all()
        assert result.maps.keys() == {"width"}
    assert check_component(file, "network")[-1] == "network pixels: writes NAME.jpg"


@pytest.mark.parametrize(
    ("old", "new", "overrides", "message"),
    [
        ("class Pixels(Network):", "class Pixels(nn.Identity):", (), "network pixels"),
        ('"weight"}', '"wait"}', (), "the weight of pixels_loss is the key wait, which it does not declare"),
        ('{"pixels_loss": (torch', '{"other": (torch', (), "returns the losses other, declares pixels_loss"),
        ("losses, counts = [], []", "losses, counts = [], 1 / 0", (), "network pixels, .*my_pixels.py line 40: Zero"),
        (
            "*things, classes",
            "torch.zeros(1, 4), torch.tensor([2]), torch.ones(1), torch.ones(1, 28, 28), classes",
            (),
            "network pixels, .*: classes must be integers from 0 to 0, found 2 to 2",
        ),
        ("", "", ("general.kind=semantic",), "kind = semantic: the network pixels is of kind panoptic"),
        ("", "", ("body.num_frozen=1",), r"\[body\] num_frozen has no effect on the network pixels"),
    ],
)
def test_what_is_refused(old, new, overrides, message, options, file):
    assert_refused(options("run", *overrides), message, file, old, new)


def test_what_runs_itself_has_the_results_of_its_kind():
    own = {"kind": "semantic", "inference": lambda *given: SimpleNamespace()}
    net = WholeNetwork(type("Own", (CustomNetwork,), own)(None, None), "own")
    assert run_by_torch(net, None, "cpu").result_type is SemanticMap
