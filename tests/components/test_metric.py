"""A metric of the user: in all outputs, over two processes, and as what selects the best snapshot."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image
from support.components import component_file

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.new import template
from seamseg.training.run import run_training
from seamseg.utils.distributed import distributed
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.validation.validator import scores_of_all

pytestmark = pytest.mark.usefixtures("narrow", "imported")


MEDIAN = '''
from seamseg.components import Metric, metric


@metric("median")
class Median(Metric):
    """Median of the greatest ids in the ground truth, and the number of entries."""

    gathered = True

    def begin(self, num_stuff, num_thing):
        self.found = []

    def add(self, item, prediction):
        self.found.append((item.id, int(item.mask.max())))

    def state(self):
        return self.found

    def scores(self, state):
        assert len({name for name, _ in state}) == len(state)
        ids = sorted(greatest for _, greatest in state)
        return {"median_id": ids[len(ids) // 2], "entries": len(ids)}
'''


CARS = template("metric", "cars").replace(
    '"cars_error": state[0] / state[1]', '"car_error": state[0] / state[1], "car_images": state[1]'
)


file = component_file("my_cars.py", CARS)


@pytest.fixture
def options(component_options, file):
    """Of a training with the metric."""
    return partial(component_options, file)


def test_all_outputs(options, tmp_path):
    scores = run_training(options("run")).validation
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["kind"] == "validation"]
    assert [line["car_images"] for line in validations] == [3, 3]
    assert validations[-1]["car_error"] == scores.metrics["car_error"] >= 0
    assert f"car_error {scores.metrics['car_error']:.4g}" in (tmp_path / "run" / "training.log").read_text()
    assert scores.table().splitlines()[-1] == "car_images: 3"


def test_an_evaluation_uses_a_metric_that_the_training_did_not(micro_run, micro, file):
    given = {"general.components": file, "metric cars.score": 0.9999}
    scores = seamseg.evaluate(micro_run, micro, device="cpu", overrides=given)
    assert scores.metrics == {"car_error": pytest.approx(1.0), "car_images": 3.0}
    # it gets the detections that are too weak for the map, too
    given |= {"metric cars.score": 0.0}
    errors = [seamseg.evaluate(micro_run, micro, device="cpu", overrides=given, score_threshold=s) for s in (0.01, 1.0)]
    assert errors[0].metrics == errors[1].metrics != scores.metrics
    assert seamseg.evaluate(micro_run, micro, device="cpu").metrics == {}


@pytest.fixture
def median(tmp_path):
    path = tmp_path / "my_median.py"
    path.write_text(MEDIAN)
    return path


def greatest_ids(data):
    """The greatest instance id of each validation image, in order."""
    names = (data / "lst" / "val.txt").read_text().split()
    return sorted(int(np.array(Image.open(data / "msk" / f"{name}.png")).max()) for name in names)


def test_a_metric_of_lists(micro_run, micro, median):
    scores = seamseg.evaluate(micro_run, micro, device="cpu", overrides={"general.components": median})
    assert scores.metrics == {"median_id": greatest_ids(micro)[1], "entries": 3}


def test_the_metric_selects_the_best_snapshot(options, tmp_path):
    run_training(options("run", "general.eval_mode=cars"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    errors = [line["car_error"] for line in lines if line["kind"] == "validation"]
    best = load_snapshot(tmp_path / "run" / "model_best.pth.tar").training_meta
    assert best["best_score"] == pytest.approx(1 / (1 + min(errors)))
    with pytest.raises(InputError, match="no metric 'car'; did you mean 'cars'"):
        run_training(options("other", "general.eval_mode=car"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"car_images": state', '"PQ": state', "metric cars: there is another score PQ: rename it"),
        ("self.counts += abs(", "self.counts += len(", "metric cars, .*: TypeError"),
        ("return self.counts", "return None", "metric cars, .*: state.. must return a vector of numbers"),
        ('"car_images": state', '"car_images": "many" or state', "metric cars, .*py: ValueError: could not convert"),
        ("def scores(self, state):", "def scores(self, state):\n        return {}", "metric cars, .*no numbers"),
        ("(Metric):", "(Metric):\n    gathered = True", "metric cars, .*: state.. must return a list, returned"),
    ],
)
def test_mistakes(file, options, old, new, message):
    assert old in CARS
    file.write_text(CARS.replace(old, new))
    with pytest.raises(SeamsegError, match=message) as error:
        run_training(options("run"))
    assert "\n" not in str(error.value)


class Part:
    """A metric of one process."""

    def __init__(self, counts, gathered=False):
        self.counts, self.gathered = counts, gathered

    def state(self):
        return self.counts

    def scores(self, state):
        return {"entries": state} if self.gathered else {"type": state.dtype.name, "sums": state.tolist()}


def sum_in_two(rank, join, out):
    join()
    with distributed("cpu") as world:
        found = [scores_of_all(world, Part(counts)) for counts in (((0.5, 1), (0, 1))[rank], [rank, 2**60])]
        found.append(scores_of_all(world, Part([f"image {rank}"], gathered=True)))
        with pytest.raises(ValueError, match="different shapes in the processes"):
            scores_of_all(world, Part([1] * (rank + 1)))
    (out / f"{rank}.json").write_text(json.dumps(found))


@pytest.mark.distributed
def test_states_of_two_processes(tmp_path):
    """Counts of a process without images are integers even where others have fractions; large integers stay exact."""
    from support.processes import launch

    launch(sum_in_two, 2, tmp_path)
    for rank in range(2):
        mixed, integers, gathered = json.loads((tmp_path / f"{rank}.json").read_text())
        assert mixed == {"type": "float64", "sums": [0.5, 2.0]}
        assert integers == {"type": "int64", "sums": [1, 2**61]}
        assert sorted(gathered["entries"]) == ["image 0", "image 1"]
