"""Processes that decode photos are killed: the photo is reported, and the run continues."""

import json
import os
import signal
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import get_worker_info

from seamseg.inference.images import PreparedImage
from seamseg.predict.job import _PredictionLoop
from seamseg.predict.sources.base import Source
from seamseg.predict.sources.share import DecodedImage, WorkerFailure
from seamseg.utils.errors import SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abcdefg":
        Image.new("RGB", (48, 32), (90, 150, 220)).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


def killing(monkeypatch, number, times):
    """Send a signal to the process that reads `d.png`, `times` times."""
    opened = Source.open

    def open_(self):
        if self.name == "d" and get_worker_info() is not None:
            mark = self.path.with_suffix(f".{number}")
            count = len(mark.read_bytes()) if mark.exists() else 0
            mark.write_bytes(b"x" * (count + 1))
            if count < times:
                os.kill(os.getpid(), number)
        return opened(self)

    monkeypatch.setattr(Source, "open", open_)


def run(main, model, photos, tmp_path, *words):
    options = ("--device", "cpu", "--workers", "2", "--quiet", "--format", "coco", *words)
    return main("predict", model, photos, tmp_path / "out", *options)


def done(tmp_path):
    content = json.loads((tmp_path / "out" / "panoptic.json").read_text())
    return [i["id"] for i in content["images"]]


def test_a_photo_is_retried_if_its_decoder_is_killed(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    killing(monkeypatch, signal.SIGKILL, 1)
    assert run(seamseg_main, micro_run, photos, tmp_path, "--batch-size", "2") == 0
    assert done(tmp_path) == list("abcdefg")
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "a process that decodes images was killed by signal SIGKILL while it read" in error
    assert "d.png" in error


def test_a_photo_that_kills_its_decoder_twice_is_skipped(
    micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys
):
    killing(monkeypatch, signal.SIGKILL, 9)
    assert run(seamseg_main, micro_run, photos, tmp_path) == 1
    assert done(tmp_path) == list("abcefg")
    assert "d.png: the process that decoded it was killed by signal SIGKILL, twice" in capsys.readouterr().err
    lines = [json.loads(x) for x in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[1:]]
    (left,) = [x for x in lines if x["status"] == "unreadable"]
    assert left["name"] == "d"
    assert left["relative"] == "d.png"
    assert "SIGKILL" in left["reason"]
    # without the kills the same command processes the missing photo
    monkeypatch.undo()
    assert run(seamseg_main, micro_run, photos, tmp_path) == 0
    assert done(tmp_path) == list("abcdefg")


def test_full_shared_memory_ends_the_run_with_advice(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    killing(monkeypatch, signal.SIGBUS, 9)
    assert run(seamseg_main, micro_run, photos, tmp_path) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "d.png" in error
    assert "enlarge /dev/shm" in error
    # finished photos are kept
    monkeypatch.undo()
    assert run(seamseg_main, micro_run, photos, tmp_path) == 0
    assert done(tmp_path) == list("abcdefg")


def test_a_failing_network_names_the_photo(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    from seamseg.models.panoptic import PanopticNet

    def fail(*_, **__):
        raise RuntimeError("the device\nburns")

    monkeypatch.setattr(PanopticNet, "predict", fail)
    assert run(seamseg_main, micro_run, photos, tmp_path) == 1
    assert "a.png: the network fails (RuntimeError: the device burns)" in capsys.readouterr().err


def test_a_failed_output_is_reported_although_a_decoder_died():
    """Both come from full memory. Photos of a shard that cannot be written are committed, but in no shard."""
    failing, handled = Event(), []

    def fuse(*_):
        failing.set()
        raise OSError(28, "No space left on device", "p-0.tar")

    def read(names):
        yield DecodedImage(
            Source(Path("a.png"), "a", "a.png"), "", PreparedImage(np.zeros((4, 4, 3), np.uint8), (4, 4))
        )
        assert failing.wait(60)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    def handle(error):
        handled.append(error)
        return WorkerFailure("dead", [])

    decoders = SimpleNamespace(share=SimpleNamespace(containers=[1]), read=read, handle_worker_failure=handle)
    loop = _PredictionLoop(
        SimpleNamespace(raw=lambda images: [None], result=fuse, tiling=None), SimpleNamespace(names={})
    )
    with pytest.raises(SeamsegError, match=r"p-0\.tar: cannot be written: No space left"):
        loop.run(decoders, 1, False)
    assert len(handled) == 1  # the other decoders are stopped


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_photo_that_cannot_be_decoded_is_skipped(
    micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys, workers
):
    opened = Source.open

    def open_(self):
        if self.name == "d":
            raise MemoryError("too large")
        return opened(self)

    monkeypatch.setattr(Source, "open", open_)
    assert run(seamseg_main, micro_run, photos, tmp_path, "--workers", workers) == 1
    assert "d.png: cannot be decoded: MemoryError: too large" in capsys.readouterr().err
    assert done(tmp_path) == list("abcefg")


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("Predictor.raw", SeamsegError("not enough memory"), "a.png: the network fails: not enough memory"),
        ("Predictor.raw", ValueError("odd"), "a.png: the network fails (ValueError: odd)"),
        ("Predictor.result", MemoryError("full"), "a.png: its outputs cannot be made (MemoryError: full)"),
    ],
)
def test_errors_name_the_photo(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys, where, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr(f"seamseg.inference.predictor.{where}", fail)
    assert run(seamseg_main, micro_run, photos, tmp_path, "--workers", "0") == 1
    assert message in capsys.readouterr().err
