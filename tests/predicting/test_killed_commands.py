"""Commands are killed: their processes end, and a prediction that goes on does each image once."""

import json
import multiprocessing
import os
import random
import time
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.micro import narrow_body
from support.processes import PRELOADED, free_port

from seamseg.cli.main import main
from seamseg.maps.formats import coco_writer

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


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "prepare"])
def test_processes_of_a_killed_command_end(micro, micro_run, tmp_path, seamseg_main, command):
    (tmp_path / "photos").mkdir()
    (tmp_path / "labels").mkdir()
    for number in range(200):
        Image.effect_noise((640, 480), 50).save(tmp_path / "photos" / f"{number}.png")
        Image.new("L", (640, 480), number % 2).save(tmp_path / "labels" / f"{number}.png")
    (tmp_path / "classes.ini").write_text("[road]\nid = 0\nkind = stuff\n[car]\nid = 1\nkind = thing\n")
    data = ("--split", "val", tmp_path / "photos", tmp_path / "labels", "--classes", tmp_path / "classes.ini")
    words = {
        "evaluate": ("evaluate", micro_run, micro, "--device", "cpu", "--set", "dataloader.num_workers=2"),
        "prepare": ("prepare", "folders", tmp_path / "out", *data),
    }[command]
    words = (*words, "--quiet") if command == "evaluate" else (*words, "--workers", "3", "--quiet")
    chance = random.Random(command)
    for _ in range(10):
        kill(seamseg_main, words, chance.uniform(0.1, 1.5))


# --- `predict` in several processes, of which one is killed and the others are ended


def predict(rank, size, port, log, words):
    """Run `predict` as one of several processes; note each PNG that it writes."""
    write = coco_writer.write_id_png

    def noted(path, *ids):
        write(path, *ids)
        with open(log, "a") as file:
            file.write(f"{path.stem}\n")

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with narrow_body(), mock.patch.object(coco_writer, "write_id_png", noted):
        os._exit(main(words))


class Run:
    """`predict` to `out` in `size` processes."""

    def __init__(self, model, folder, out, size, number):
        multiprocessing.set_forkserver_preload(PRELOADED)
        context = multiprocessing.get_context("forkserver")
        words = ["predict", model, folder / "photos", folder / out, "--format", "coco", "--device", "cpu", "--quiet"]
        words = [str(word) for word in (*words, "--workers", 0, "--min-area", 16)]
        self.log, port = folder / f"{out}{number}.log", free_port()
        arguments = [(rank, size, port, self.log, words) for rank in range(size)]
        self.processes = [context.Process(target=predict, args=given) for given in arguments]
        for process in self.processes:
            process.start()

    def written(self):
        return self.log.read_text().split() if self.log.exists() else []

    def end(self):
        """Wait for all processes; return their exit codes."""
        for process in self.processes:
            process.join(300)
        return [process.exitcode for process in self.processes]

    def kill(self, count, chance):
        """Kill a process soon after so many images are written, and the others as a launcher does."""
        ends = time.monotonic() + 300
        while len(self.written()) < count and all(process.is_alive() for process in self.processes):
            assert time.monotonic() < ends
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.1))
        chance.choice(self.processes).kill()
        time.sleep(chance.choice([0, 0.3]))
        for process in self.processes:
            process.kill()
        self.end()


def lines(out):
    """The lines of the manifests whose outputs are there, without times; a last one that is cut off does not count."""
    found = {}
    for path in sorted(out.glob("predictions*.jsonl")):
        for data in path.read_bytes().split(b"\n")[1:-1]:
            line = json.loads(data)
            if all((out / output).exists() for output in line["outputs"]):
                found[line["name"]] = line | {"seconds": 0}
    return found


@pytest.mark.slow
@pytest.mark.distributed
def test_each_image_is_in_the_results_once(micro_run, tmp_path):
    """No image that a manifest lists is done again or lost; the files are those of an undisturbed run."""
    chance, names, rng = random.Random(1), [f"{number:02}" for number in range(60)], np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for name in names:
        Image.fromarray(rng.integers(0, 256, (32, 48, 3), np.uint8)).save(tmp_path / "photos" / f"{name}.png")
    assert Run(micro_run, tmp_path, "calm", 1, 0).end() == [0]
    calm, out, done = tmp_path / "calm", tmp_path / "out", {}
    for number, (size, count) in enumerate([(2, 8), (1, 8), (3, 0), (2, 20), (2, None)]):
        run = Run(micro_run, tmp_path, "out", size, number)
        if count is None:
            assert run.end() == [0] * size
        else:
            run.kill(count, chance)
        written, before = run.written(), set(done)
        assert len(set(written)) == len(written)
        assert not before & set(written)
        done = lines(out)
        assert before <= set(done)
    assert sorted(done) == names
    assert list(done.items()) == list(lines(calm).items())
    files = [path.relative_to(calm) for path in calm.rglob("*") if path.name != "predictions.jsonl" and path.is_file()]
    assert len(files) == len(names) + 1
    assert all((out / path).read_bytes() == (calm / path).read_bytes() for path in files)
    assert [path.name for path in out.glob("predictions*")] == ["predictions.jsonl"]
