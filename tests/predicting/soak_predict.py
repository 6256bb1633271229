"""Kill processes of `predict` repeatedly, and check that every image is in the results exactly once.

    python tests/predicting/soak_predict.py --images 10000 --kills 40 --seed 0

Tiny images are predicted in two processes. A random one gets SIGKILL at a random moment (while it starts, works or
merges), the others are ended as a launcher does, and the same command is started again, now and then with one process
or three. After every kill the manifests say which images are done: none of them may be written again. In the end each
image must have one line, and outputs and COCO JSON must equal those of an undisturbed run in one process.

Exit code 1 on any violation. The last lines extrapolate the time and memory to a million images.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


class Violation(Exception):
    """What must not happen."""


def make_photos(folder: Path, count: int) -> None:
    """Make images of a car each, in folders of a thousand."""
    rng = np.random.default_rng(0)
    for number in range(count):
        picture = np.empty((32, 48, 3), np.uint8)
        picture[:16], picture[16:] = (90, 150, 220), (70, 70, 70)
        y, x = int(rng.integers(8, 20)), int(rng.integers(0, 36))
        picture[y : y + 10, x : x + 12] = (220, 40, 40)
        path = folder / f"{number // 1000:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)


def make_model(folder: Path) -> Path:
    """Train a network of a hundredth of the size for one epoch; return the run folder."""
    from support.micro import make_dataset, narrow_body, write_config

    from seamseg.training.run import TrainingOptions, run_training

    make_dataset(folder / "data", [2, 1], [1])
    extra = ["scheduler.epochs=1", "scheduler.burn_in_steps=1"]
    options = TrainingOptions(
        write_config(folder / "toy.ini"), folder / "data", folder / "run", device="cpu", overrides=extra
    )
    with narrow_body():
        run_training(options)
    return folder / "run"


class Run:
    """`predict` in `size` processes, forked from this one, where torch is loaded."""

    def __init__(self, folder: Path, out: str, size: int, log: Path) -> None:
        from support.processes import free_port

        self.log = log
        port = free_port()
        words = ["predict", folder / "run", folder / "photos", out, "--format", "coco", "--device", "cpu"]
        words += ["--workers", "0", "--shortest-size", "32", "--min-area", "16", "--score-threshold", "0.1", "--quiet"]
        self.pids = [self._start(rank, size, port, [str(w) for w in words]) for rank in range(size)]
        self.codes: dict[int, int] = {}

    def _start(self, rank: int, size: int, port: int, words: list[str]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            with open(self.log.with_suffix(f".{rank}.err"), "wb") as file:
                os.dup2(file.fileno(), 2)
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            code = predict(words, self.log)
        finally:
            sys.stderr.flush()
            os._exit(code)
        raise AssertionError

    def alive(self) -> bool:
        """Return whether a process is still running."""
        for pid in self.pids:
            if pid not in self.codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) < len(self.pids)

    def end(self) -> None:
        """Kill the remaining processes."""
        while self.alive():
            for pid in self.pids:
                if pid not in self.codes:
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def written(self) -> list[str]:
        """Return the images whose PNG this run has written, in order."""
        return self.log.read_text().split() if self.log.exists() else []


def predict(words: list[str], log: Path) -> int:
    """Run the command line and record every PNG."""
    from support.micro import narrow_body

    from seamseg.cli.main import main
    from seamseg.maps.formats import coco_writer

    notes = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    write = coco_writer.write_id_png

    def noted(path, *ids):
        write(path, *ids)
        os.write(notes, f"{path.stem}\n".encode())

    with narrow_body(), mock.patch.object(coco_writer, "write_id_png", noted):
        return main(words)


def recorded(out: Path) -> set[str]:
    """Return the images that are done in manifests and whose outputs exist; a partial last line does not count."""
    found = set()
    for path in out.glob("predictions*.jsonl"):
        with suppress(FileNotFoundError):
            for data in path.read_bytes().split(b"\n")[1:-1]:
                line = json.loads(data)
                if all((out / output).exists() for output in line["outputs"]):
                    found.add(line["name"].rpartition("/")[2])
    return found


def watch(run: Run, patience: float, until) -> bool:
    """Wait until a condition holds; return False if the processes ended before."""
    deadline = time.monotonic() + patience
    while not until():
        if not run.alive():
            return False
        if time.monotonic() > deadline:
            raise Violation(f"no end in {patience:.0f} s, see {run.log}.*")
        time.sleep(0.005)
    return True


def finish(run: Run, patience: float) -> None:
    """Wait for a clean exit."""
    watch(run, patience, lambda: False)
    if set(run.codes.values()) != {0}:
        errors = [p.read_text()[-300:] for p in sorted(run.log.parent.glob(f"{run.log.stem}.*.err"))]
        raise Violation(f"exit codes {sorted(run.codes.values())}: {errors}")


def torment(folder: Path, out: Path, images: int, kills: int, chance: random.Random, patience: float) -> Counter[str]:
    """Kill `kills` times, then let it end."""
    counts: Counter[str] = Counter()
    done: set[str] = set()
    for number in range(kills + 1):
        size = 2 if number == kills else (2, 1, 2, 3)[number % 4]
        run = Run(folder, str(out), size, folder / f"start{number}.log")
        try:
            if number < kills:
                kind = chance.choice(["start", "work", "work", "work", "end"])
                left = images - len(done)
                target = {"start": 0, "work": chance.randint(1, max(1, 2 * left // (kills + 1))), "end": left}[kind]
                if kind == "end" and number < kills // 2:
                    kind, target = "work", max(1, left // (kills + 1))
                watch(run, patience, lambda: len(run.written()) >= target)  # noqa: B023
                time.sleep(chance.uniform(0, {"start": 4.0, "work": 0.1, "end": 0.5}[kind]))
                with suppress(OSError):
                    os.kill(chance.choice(run.pids), signal.SIGKILL)
                # as a launcher ends the others, sooner or later
                time.sleep(chance.choice([0, 0.3]))
                run.end()
                counts["kills"] += 1
                counts[f"kills while at {kind}"] += 1
            else:
                finish(run, patience)
        finally:
            run.end()
        written = run.written()
        again = done & set(written)
        if again or len(set(written)) < len(written):
            raise Violation(f"start {number} wrote images again: {sorted(again)[:3]}")
        counts["PNGs written"] += len(written)
        now = recorded(out)
        if done - now:
            raise Violation(f"start {number} lost {len(done - now)} lines")
        done = now
        counts[f"starts in {size}"] += 1
        print(f"start {number} in {size}: {len(written)} written, {len(done)} of {images} done", flush=True)
    return counts


def compare(calm: Path, stormy: Path, images: int) -> None:
    """Check that both runs have the same outputs, one of each image."""
    names = [json.loads(line)["name"] for line in (stormy / "predictions.jsonl").read_text().splitlines()[1:]]
    if len(names) != images or len(set(names)) != images:
        raise Violation(f"{len(names)} lines, {len(set(names))} images of {images}")
    if list(stormy.glob("predictions.rank*")) or list(stormy.rglob(".*.partial"))[len(names) :]:
        raise Violation("files are left over")
    content = json.loads((stormy / "panoptic.json").read_text())
    if (
        len(content["annotations"]) != images
        or (stormy / "panoptic.json").read_bytes() != (calm / "panoptic.json").read_bytes()
    ):
        raise Violation("panoptic.json differs from the undisturbed run's")
    for path in calm.rglob("*.png"):
        if path.read_bytes() != (stormy / path.relative_to(calm)).read_bytes():
            raise Violation(f"{path.name} differs from the undisturbed run's")
    lines = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (out / "predictions.jsonl").read_text().splitlines()[1:]
        ]
        for out in (calm, stormy)
    ]
    if lines[0] != lines[1]:
        raise Violation("the manifests differ")


def main() -> int:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="seed of processes and moments")
    parser.add_argument("--patience", type=float, default=3600, help="seconds that one start may take")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # loaded before the processes are forked
    import seamseg.predicting.job
    import seamseg.training.run  # noqa: F401

    os.environ["SEAMSEG_MALLOC"] = "off"
    folder = Path(tempfile.mkdtemp(prefix="soak_predict_"))
    tempfile.tempdir = str(folder)
    try:
        make_photos(folder / "photos", options.images)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                make_model(folder)
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise Violation("the training failed")
        begin = time.monotonic()
        finish(Run(folder, str(folder / "calm"), 1, folder / "calm.log"), options.patience)
        seconds = time.monotonic() - begin
        stormy = folder / "stormy"
        chance = random.Random(options.seed)
        counts = torment(folder, stormy, options.images, options.kills, chance, options.patience)
        compare(folder / "calm", stormy, options.images)
    except Violation as violation:
        print(f"VIOLATION: {violation}; everything is left in {folder}")
        return 1
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"{counts['PNGs written'] - options.images} PNGs of images without a line were made anew, none with one")
    print("every image once; PNGs, panoptic.json and manifest equal the undisturbed run's")
    rate = options.images / seconds
    size = (folder / "calm" / "predictions.jsonl").stat().st_size / options.images
    hours = 1e6 / rate / 3600
    print(f"undisturbed, one process with its start: {rate:.1f} photos/s, {size:.0f} bytes of manifest an image")
    print(f"a million images: {hours:.1f} h in one such process, {hours / 8:.1f} h in 8; {hours / 24:.2f} for a day")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
