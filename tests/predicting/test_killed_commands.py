"""Commands are killed: their processes end. An image that cannot be decoded does not end a run."""

import json
import multiprocessing
import random
import time

import pytest
from PIL import Image

from seamseg.predicting.source import Source

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abcdefg":
        Image.new("RGB", (48, 32), (90, 150, 220)).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


def run(main, model, photos, tmp_path, *words):
    options = ("--device", "cpu", "--workers", "2", "--quiet", "--format", "coco", *words)
    return main("predict", model, photos, tmp_path / "out", *options)


def done(tmp_path):
    content = json.loads((tmp_path / "out" / "panoptic.json").read_text())
    return [i["id"] for i in content["images"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_photos_that_cannot_be_decoded_are_skipped(
    micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys, workers
):
    opened, errors = Source.open, {"b": StopIteration(), "d": MemoryError("too large"), "g": RecursionError("deep")}

    def open_(self):
        if self.name in errors:
            raise errors[self.name]
        return opened(self)

    monkeypatch.setattr(Source, "open", open_)
    assert run(seamseg_main, micro_run, photos, tmp_path, "--workers", str(workers)) == 1
    said = capsys.readouterr().err
    assert "d.png: cannot be decoded: MemoryError: too large" in said
    assert said.count(".png: cannot be decoded: ") == 3
    assert done(tmp_path) == list("acef")


def kill(main, words, seconds):
    """Kill a command after so many seconds; fail if a process of it is alive two seconds later."""
    context = multiprocessing.get_context("fork")
    messages, alive = context.Pipe(duplex=False)
    command = context.Process(target=main, args=words)
    command.start()
    alive.close()  # each process of the command has a copy
    time.sleep(seconds)
    command.kill()
    command.join()
    assert messages.poll(2), f"processes of {words[0]} are alive"
    with pytest.raises(EOFError):
        messages.recv()


def test_a_killed_run_ends(micro_run, photos, tmp_path, seamseg_main):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "2", "--quiet")
    kill(seamseg_main, words, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "evaluate", "prepare"])
def test_processes_of_a_killed_command_end(micro, micro_run, tmp_path, seamseg_main, command):
    (tmp_path / "photos").mkdir()
    (tmp_path / "labels").mkdir()
    for number in range(200):
        Image.effect_noise((640, 480), 50).save(tmp_path / "photos" / f"{number}.png")
        Image.new("L", (640, 480), number % 2).save(tmp_path / "labels" / f"{number}.png")
    (tmp_path / "classes.ini").write_text("[road]\nid = 0\nkind = stuff\n[car]\nid = 1\nkind = thing\n")
    data = ("--split", "val", tmp_path / "photos", tmp_path / "labels", "--classes", tmp_path / "classes.ini")
    words = {
        "predict": ("predict", micro_run, tmp_path / "photos", tmp_path / "out", "--device", "cpu", "--restart"),
        "evaluate": ("evaluate", micro_run, micro, "--device", "cpu", "--set", "dataloader.num_workers=2"),
        "prepare": ("prepare", "folders", tmp_path / "out", *data),
    }[command]
    words = (*words, "--quiet") if command == "evaluate" else (*words, "--workers", "3", "--quiet")
    chance = random.Random(command)
    for _ in range(10):
        kill(seamseg_main, words, chance.uniform(0.1, 1.5))
