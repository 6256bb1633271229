"""Commands are killed: their processes end."""

import multiprocessing
import random
import time

import pytest
from PIL import Image

pytestmark = pytest.mark.usefixtures("narrow")


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


def test_a_killed_run_ends(micro_run, micro, tmp_path, seamseg_main):
    words = ("predict", micro_run, micro / "img", tmp_path / "out", "--device", "cpu", "--workers", "2", "--quiet")
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
