"""A metric of the user: in all outputs, over two processes, and as what selects the best snapshot."""

import json
import sys

import numpy as np
import pytest
from support.components import assert_refused, component_file
from support.processes import launch

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.training.run import run_training
from seamseg.utils.distributed import World, distributed
from seamseg.utils.errors import InputError
from seamseg.validation.validator import CustomMetrics, scores_of_all

pytestmark = pytest.mark.usefixtures("narrow", "imported")


CARS = template("metric", "cars").replace(
    '"cars_error": state[0] / state[1]', '"car_error": state[0] / state[1], "car_images": state[1]'
)
CARS = "SEGMENTS = []\n" + CARS.replace(
    "        true =", "        SEGMENTS.append(len(item.result.segments))\n        true ="
)
file, options = component_file("my_cars.py", CARS)


def test_all_outputs_and_the_choice_of_the_best_snapshot(options, tmp_path):
    scores = run_training(options("run", "general.eval_mode=cars")).validation
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["kind"] == "validation"]
    assert [line["car_images"] for line in validations] == [3, 3]
    assert validations[-1]["car_error"] == scores.metrics["car_error"] >= 0
    assert f"car_error {scores.metrics['car_error']:.4g}" in (tmp_path / "run" / "training.log").read_text()
    assert scores.table().splitlines()[-1] == "car_images: 3"
    best, least = load_snapshot(tmp_path / "run" / "model_best.pth.tar"), min(v["car_error"] for v in validations)
    assert (best.training_meta["best_score"], best.resume["best_of"]) == (least, "car_error")
    assert f"best so far: car_error {least:.4g}, in " in (tmp_path / "run" / "training.log").read_text()
    with pytest.raises(InputError, match="no metric 'car'; did you mean 'cars'"):
        run_training(options("other", "general.eval_mode=car"))


def test_an_evaluation_uses_a_metric_that_the_training_did_not(micro_run, micro, file):
    given = {"metric cars.score": 0.9999}
    scores = seamseg.evaluate(micro_run, micro, device="cpu", overrides=given, components=[file])
    assert scores.metrics == {"car_error": pytest.approx(1.0), "car_images": 3.0}
    # it gets the detections that are too weak for the map, too
    given = {"general.components": file, "metric cars.score": 0.0}
    errors = [seamseg.evaluate(micro_run, micro, device="cpu", overrides=given, score_threshold=s) for s in (0.01, 1.0)]
    assert errors[0].metrics == errors[1].metrics != scores.metrics
    *_, low, high = np.reshape(sys.modules["my_cars"].SEGMENTS, (-1, 3)).sum(1)
    assert low > high, "the result has the thresholds of the scores"
    assert seamseg.evaluate(micro_run, micro, device="cpu").metrics == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"car_images": state', '"PQ": state', "metric cars: there is another score PQ: rename it"),
        ("return self.counts", "return None", "metric cars, .*: state.. must return a vector of numbers"),
        ('"car_images": state', '"car_images": "many" or state', "metric cars, .*py: ValueError: could not convert"),
        ("def scores(self, state):", "def scores(self, state):\n        return {}", "metric cars, .*no numbers"),
        ("higher_is_better = False", "higher_is_better = 'no'", "metric cars, .*: higher_is_better must be"),
        ("(Metric):", "(Metric):\n    gathered = True", "metric cars, .*: state.. must return a list, returned"),
    ],
)
def test_mistakes(file, options, old, new, message, tmp_path):
    """They end a training at its first validation, with a snapshot from before."""
    assert_refused(options("run"), message, file, old, new)
    assert (tmp_path / "run" / "model_last.pth.tar").exists()


class Part:
    def __init__(self, counts, gathered=False):
        self.counts, self.gathered = counts, gathered

    def add(self, item, prediction):
        self.counts.append(item.pop())

    def state(self):
        return self.counts

    def scores(self, state):
        return {"entries": state} if self.gathered else {"type": state.dtype.name, "sums": state.tolist()}


def sum_in_two(rank, join):
    join()
    with distributed("cpu") as world:
        mixed, integers = (scores_of_all(world, Part(counts)) for counts in (((0.5, 1), (0, 1))[rank], [rank, 2**60]))
        assert mixed == {"type": "float64", "sums": [0.5, 2.0]}
        assert integers == {"type": "int64", "sums": [1, 2**61]}
        gathered = scores_of_all(world, Part([f"image {rank}"], gathered=True))
        assert sorted(gathered["entries"]) == ["image 0", "image 1"]
        with pytest.raises(ValueError, match="different shapes in the processes"):
            scores_of_all(world, Part([1] * (rank + 1)))


def test_each_of_several_metrics_may_change_what_it_gets(micro_config):
    metrics = CustomMetrics(load_config(micro_config), None, World())
    metrics._metrics = {"first": Part([]), "second": Part([])}
    metrics.add(["image"], "prediction")
    assert [metric.counts for metric in metrics._metrics.values()] == [["image"]] * 2


@pytest.mark.distributed
def test_states_of_two_processes():
    """Counts of a process without images are integers even where others have fractions; large integers stay exact."""
    launch(sum_in_two, 2)
