"""The loggers of `examples` with their packages, without a server: one run for a training and its resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.interruptions import signals_at, train_until_done

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("narrow", "imported")]


@pytest.fixture
def train(component_options, tmp_path):
    """Train with a logger, stopped after step 3; return the lines of metrics.jsonl."""

    def train(name, *overrides):
        options = component_options(EXAMPLES / f"{name}_logger.py", "run", *overrides, resume="auto")
        with signals_at([3]):
            assert train_until_done(options) == 1
        assert "is not called again" not in (tmp_path / "run" / "training.log").read_text()
        return [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    return train


def test_wandb(train, tmp_path):
    pytest.importorskip("wandb", reason="`pip install wandb` for this test")
    train("wandb", "callback wandb.mode=offline")
    runs = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert len({run.name.rpartition("-")[2] for run in runs}) == 1, "a resumed training has the id of the first"
    assert all(next(run.glob("run-*.wandb")).stat().st_size > 1000 for run in runs)


def test_mlflow(train, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="`pip install mlflow-skinny` for this test")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "records").as_uri()
    lines = train("mlflow", f"callback mlflow.uri={uri}")
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("seamseg").experiment_id])
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "done")
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")}
    assert logged == {line["step"]: pytest.approx(line["loss"]) for line in lines if line["kind"] == "train"}
    assert run.data.metrics["val/PQ"] == pytest.approx(lines[-1]["PQ"])
