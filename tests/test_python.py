"""`seamseg.load`, `predict`, `evaluate` and `train`: the options of the commands as keywords."""

import inspect
import json
import subprocess
import sys
import traceback
from dataclasses import MISSING, fields

import pytest

import seamseg
from seamseg.components import Callback
from seamseg.inference.options import LoadOptions, PredictOptions
from seamseg.training.options import TrainingOptions
from seamseg.utils.errors import InputError
from seamseg.validation.options import EvaluationOptions

OPTIONS = {
    "load": LoadOptions,
    "predict": PredictOptions,
    "evaluate": EvaluationOptions,
    "train": TrainingOptions,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_keywords_are_those_of_the_options(name):
    parameters = dict(inspect.signature(getattr(seamseg, name)).parameters)
    for field in fields(OPTIONS[name]):
        found = parameters.pop(field.name)
        assert found.default == (inspect.Parameter.empty if field.default is MISSING else field.default), field.name
    assert set(parameters) <= {"model", "out", "components"}


def test_the_way_to_the_weights_is_short(micro_run, monkeypatch):
    """Four functions from `load` to `torch.load`."""
    ways = []

    def noted(*args, **keywords):
        ways.append([frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe(1))])
        raise OSError("that is all")

    monkeypatch.setattr("torch.load", noted)
    with pytest.raises(InputError):
        seamseg.load(micro_run, device="cpu")
    assert ways[0][: ways[0].index("load") + 1] == ["load_tensors", "open_model", "open_for_inference", "load"]


@pytest.mark.usefixtures("narrow")
def test_predict(micro, micro_run, tmp_path, seamseg_main, capsys):
    out, given = tmp_path / "out", {"score_threshold": 0.3, "limit": 2}
    done = seamseg.predict(micro_run, [micro / "img"], out, ["coco"], "cpu", workers=0, **given)
    assert (done.done, done.earlier) == (2, 0)
    assert len(json.loads((out / "panoptic.json").read_text())["annotations"]) == 2
    words = ["predict", micro_run, micro / "img", out, "--device", "cpu", "--format", "coco", "--score-threshold", 0.3]
    assert seamseg_main(*words) == 0
    assert "5 images in" in (text := capsys.readouterr().err)
    assert "2 were there already" in text
    with pytest.raises(InputError, match=r"^`batch_size=0`: must be at least 1$"):
        seamseg.predict(micro_run, micro / "img", out, batch_size=0)


def test_options_without_an_effect():
    with pytest.raises(InputError, match=r"^`classes` has no effect: all classes of the data set are scored$"):
        seamseg.evaluate("none.zip", "data", classes="car")
    with pytest.raises(InputError, match=r"^`probabilities` has no effect: scores are of classes$"):
        seamseg.evaluate("none.zip", "data", probabilities=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiles": 512.5}, "^`tiles` must be auto, off or a side in pixels, not 512.5$"),
        ({"tta": ["flip"]}, r"^`tta=\['flip'\]`: must be `flip` and scales between 0.1 and 4, such as"),
        ({"overrides": "scheduler.epochz=1"}, r"^`overrides=scheduler.epochz=1`: unknown key 'epochz'"),
    ],
)
def test_values_of_another_type(options, message, micro_run):
    with pytest.raises(InputError, match=message):
        seamseg.load(micro_run, **options)


@pytest.mark.usefixtures("narrow")
def test_the_result_of_a_training(micro, micro_config, tmp_path):
    class Stop(Callback):
        def train(self, run, values):
            if run.step == 3:
                run.stop("enough")

    run = tmp_path / "run"
    given = {"general.log_interval": 1, "dataloader.train_batch_size": 1, "scheduler.epochs": 1}
    stopped = seamseg.train(micro_config, micro, run, "cpu", overrides=given, callbacks=[Stop()])
    assert (stopped.stopped, stopped.steps, stopped.epochs) == ("enough", 3, 0)
    assert (stopped.scores, stopped.best, stopped.validation) == ({}, None, None)
    assert repr(stopped) == f"{run}: stopped: enough (3 steps, 0 epochs)"
    done = seamseg.train(micro_config, micro, run, "cpu", overrides=given, resume=run)
    assert (done.run_folder, done.stopped, done.steps, done.epochs) == (run, "", 4, 1)
    assert done.history == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in done.history if line["kind"] == "train"] == [1, 2, 3, 4]
    assert done.scores["PQ"] == done.validation.PQ == done.history[-1]["PQ"]
    assert done.best == done.validation.selection.value
    assert repr(done).splitlines()[:2] == [f"{run}: done (4 steps, 1 epoch)", f"best score {done.best:.4g}"]
    assert repr(done).endswith(done.validation.table())
    again = seamseg.train(micro_config, micro, run, "cpu", overrides=given, resume="auto")
    assert (again.validation, again.scores, again.best) == (None, done.scores, done.best)
    with pytest.raises(AttributeError):
        done.steps = 5


def test_converters_are_functions():
    code = "import sys, seamseg; seamseg.prepare.prepare_cityscapes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
