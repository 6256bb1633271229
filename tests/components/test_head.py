"""A head of the user: trained, resumed, predicted with in all ways, and left out."""

import numpy as np
import pytest
import torch
from inference.test_acceleration import as_on_a_gpu
from PIL import Image
from support.components import EDGES, assert_refused, component_file, imported_for_a_module
from support.interruptions import loss_lines
from support.micro import train

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import load_config
from seamseg.models.build import build_network
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

file, options = component_file("my_edges.py", EDGES, "head edge.channels=4")


@pytest.fixture(scope="module")
def edge_run(tmp_path_factory, micro, micro_config):
    run = tmp_path_factory.mktemp("edge") / "run"
    file = run.with_name("run_edges.py")
    file.write_text(EDGES)
    with imported_for_a_module(file) as overrides:
        train(micro_config, micro, run, *overrides, "optimizer.lr=.01")
    return run, file


def test_the_loss_is_trained_and_saved(edge_run, options, tmp_path):
    assert all("  edge " in line for line in loss_lines(edge_run[0]))
    state = load_snapshot(edge_run[0] / "model_last.pth.tar").state_dict
    assert {"edge.hidden.weight", "edge.output.weight", "edge.output.bias"} < state["heads"].keys()
    run_training(options("untrained", "head edge.weight=0", "scheduler.epochs=1"))
    other = load_snapshot(tmp_path / "untrained" / "model_last.pth.tar").state_dict
    assert not torch.equal(state["heads"]["edge.output.bias"], other["heads"]["edge.output.bias"])


def test_other_parts_start_with_the_same_weights(file, micro_config):
    states = []
    for overrides in ((), (f"general.components={file}",)):
        torch.manual_seed(0)
        states.append(build_network(load_config(micro_config, None, overrides), 2, 1).state_dict())
    plain, more = states
    assert {key.split(".")[0] for key in more.keys() - plain.keys()} == {"heads"}
    assert all(torch.equal(value, more[key]) for key, value in plain.items())


def test_files_of_the_map(edge_run, micro, tmp_path, seamseg_main):
    run, file = edge_run
    photo = micro / "img" / "val0.png"
    words = ("--device", "cpu", "--workers", "0", "--quiet", "--components", file, "--format", "coco,edge")
    assert seamseg_main("predict", run, photo, tmp_path / "out", *words) == 0
    image = np.array(Image.open(tmp_path / "out" / "val0_edge.png"))
    assert image.shape == (64, 96)
    assert image.dtype == np.uint8
    model = seamseg.load(run, device="cpu", overrides={"general.components": file})
    (prediction,) = model.raw([np.array(Image.open(photo))])
    assert prediction.maps["edge"].dtype == np.float32
    if prediction.size == image.shape:
        assert np.abs(np.rint(255 * prediction.maps["edge"]) - image).max() <= 1
    graphs = as_on_a_gpu(model)
    for _ in range(3):
        (recorded,) = model.raw([np.array(Image.open(photo))])
        assert np.array_equal(recorded.maps["edge"], prediction.maps["edge"])
    assert len(graphs) == 1


def test_tiles_merge_the_map(edge_run, micro):
    run, file = edge_run
    rgb = np.array(Image.open(micro / "img" / "val0.png"))
    big = np.ascontiguousarray(np.tile(rgb, (4, 4, 1)))
    given = {"device": "cpu", "overrides": {"general.components": file}}
    (whole,) = seamseg.load(run, **given, tiles="off").raw([big])
    (tiled,) = seamseg.load(run, **given, tiles=160).raw([big])
    assert tiled.maps["edge"].shape == whole.maps["edge"].shape == big.shape[:2]
    assert np.abs(tiled.maps["edge"] - whole.maps["edge"]).mean() < 0.05


def test_a_model_opens_without_its_head(edge_run, micro, tmp_path, seamseg_main, capsys):
    run, _ = edge_run
    photo = micro / "img" / "val0.png"
    words = ("--device", "cpu", "--workers", "0", "--format", "coco")
    assert seamseg_main("predict", run, photo, tmp_path / "out", *words) == 0
    assert "head edge (run_edges.py) is not imported: name its file with --components FILE" in capsys.readouterr().err
    assert seamseg_main("predict", run, photo, tmp_path / "out2", *words[:-1], "edge") == 2
    assert "there is no format 'edge'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('["edge"].sigmoid', '["edges"].sigmoid', SeamsegError, r"head edge, .*line \d+: KeyError"),
        ("ids = masks[0]", "ids = masks[0].zero_()", SeamsegError, "head edge, .*changes the batch in place"),
        ("features.levels[0]", "features.levels[0].relu_()", SeamsegError, "head edge, .*changes the levels in place"),
        ('{"edge_loss": (', '{"edges": (', SeamsegError, "returns the losses edges, declares edge_"),
        ('return {"edge_loss"', 'return None and {"edge_loss"', SeamsegError, "head edge, .*must return a dict"),
        ("(mean, valid", "(mean[None], valid", SeamsegError, "edge_loss must be a scalar tensor"),
        ("(mean, valid", "(mean.detach(), valid", SeamsegError, "edge_loss is a constant, without gradient"),
        ("valid.sum())", "-1)", SeamsegError, "the count of edge_loss is -1"),
        ('"weight"}', '"weigth"}', InputError, "the key weigth, which it does"),
        ('{"edge_loss": "weight"}', '{"sem_loss": "weight"}', InputError, "there is another sem_loss"),
        ("(Head):", "(nn.Module):", InputError, "derived from seamseg.components.Head|TypeError"),
    ],
)
def test_mistakes(old, new, error, message, file, options):
    assert_refused(options("run"), message, file, old, new, error)
