"""Kill processes of a training repeatedly, and check that its result equals that of an undisturbed one to the bit.

    python benchmarks/kill_ranks.py --kills 50 --seed 0

A toy data set is trained in two processes under `torchrun --max-restarts` with `--resume auto`. A random rank gets
SIGKILL at a random moment: while it trains, writes a snapshot, starts, or joins the others. After every kill each
snapshot that has its name is read and compared with its checksums; a run that makes no progress for `--patience`
seconds hangs. In the end weights, momentum, averages and scores are compared with those of the undisturbed run.

Exit code 1 on any violation.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

IMAGES = [2, 1, 0, 3, 1, 0, 2, 1]
PER_EPOCH = len(IMAGES) // 2


def work(arguments: list[str]) -> int:
    """Run a process of the training, with a network of a hundredth of the size."""
    from support.micro import narrow_body

    folder, rank = Path(arguments[0]), os.environ["RANK"]
    note = folder / f"pid.{rank}.new"
    note.write_text(str(os.getpid()))
    os.replace(note, folder / f"pid.{rank}")
    from seamseg.cli.main import main

    with narrow_body():
        return main(arguments[1:])


class Violation(Exception):
    """What must not happen."""


class Training:
    """A training in two processes under torchrun, in `folder/NAME`."""

    def __init__(self, folder: Path, name: str, epochs: int, restarts: int) -> None:
        self.run = folder / name
        self.killed: set[int] = set()
        self.notes = folder / f"{name}.pids"
        self.notes.mkdir()
        train: list[object] = ["train", folder / "toy.ini", folder / "data", "--log-dir", self.run, "--resume", "auto"]
        train += ["--device", "cpu", "--quiet"]
        for setting in (
            f"scheduler.epochs={epochs}",
            "dataloader.train_batch_size=1",
            "general.snapshot_interval=1",
            "general.snapshot_keep=3",
            f"general.val_interval={max(2, epochs // 8)}",
        ):
            train += ["--set", setting]
        command: list[object] = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
        command += ["--max-restarts", str(restarts), "--monitor-interval", "0.1", __file__, "--work", self.notes]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            # torchrun must read it: without, processes of one start can meet the store of the one before
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "SEAMSEG_MALLOC": "off",
        }
        self.output = open(folder / f"{name}.out", "w")  # noqa: SIM115 (for as long as the process writes)
        self.process = subprocess.Popen(
            [str(word) for word in [*command, *train]],
            env=environment,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def newest(self) -> int:
        """Return the step of the newest snapshot, 0 if there is none."""
        names = [p.name for p in (self.run / "snapshots").glob("step-*.pth.tar")]
        return max((int(name[5:13]) for name in names), default=0)

    def pids(self) -> dict[int, int]:
        """Return the started processes by rank."""
        found = {}
        for rank in range(2):
            with suppress(OSError, ValueError):
                found[rank] = int((self.notes / f"pid.{rank}").read_text())
        return found

    def both_anew(self) -> bool:
        """Return whether two processes have started since the last kill."""
        pids = set(self.pids().values())
        return len(pids) == 2 and not pids & self.killed

    def end(self) -> None:
        """Kill all processes."""
        for pid in [self.process.pid, *self.pids().values()]:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL) if pid == self.process.pid else os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()


def verify_all(run: Path) -> int:
    """Check every snapshot with a name; return their number."""
    from seamseg.checkpoints.snapshot import verify_snapshot
    from seamseg.utils.errors import InputError

    count = 0
    for path in [*(run / "snapshots").glob("step-*.pth.tar"), *run.glob("model_*.pth.tar")]:
        try:
            verify_snapshot(path)
            count += 1
        except InputError as error:
            # the process that is left may be making room for newer ones
            if path.exists():
                raise Violation(f"a damaged snapshot: {error}") from error
    return count


def wait_for(training: Training, patience: float, done: Callable[[], bool]) -> bool:
    """Wait until `done()`; return False if the training ended before."""
    deadline = time.monotonic() + patience
    while not done():
        if training.process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise Violation(f"no progress in {patience:.0f} s after step {training.newest()}")
        time.sleep(0.01)
    return True


def torment(training: Training, kills: int, chance: random.Random, patience: float) -> Counter[str]:
    """Kill `kills` times, and wait for the end."""
    counts: Counter[str] = Counter()
    longest = 0.0
    while counts["kills"] < kills:
        # torchrun starts both anew: wait until both of this start are there
        begin = time.monotonic()
        if not wait_for(training, patience, training.both_anew):
            break
        started = time.monotonic() - begin
        early = chance.random() < 0.2
        if not early:
            target = training.newest() + chance.randint(1, 5)
            if not wait_for(training, patience, lambda: training.newest() >= target):  # noqa: B023
                break
            longest = max(longest, time.monotonic() - begin)
            print(f"both there after {started:.1f} s, on step {target} after {time.monotonic() - begin:.1f} s")
        time.sleep(chance.uniform(0, 3.0 if early else 0.3))
        rank, pids = chance.randrange(2), training.pids()
        step = training.newest()
        try:
            os.kill(pids[rank], signal.SIGKILL)
        except OSError:
            break
        training.killed |= set(pids.values())
        counts["kills"] += 1
        counts[f"of rank {rank}"] += 1
        counts["while starting" if early else "while training"] += 1
        counts["snapshots verified"] += verify_all(training.run)
        print(f"kill {counts['kills']}: rank {rank}{' while it starts' if early else ''}, step {step}", flush=True)
    wait_for(training, 6 * patience, lambda: training.process.poll() is not None)
    if training.process.returncode:
        raise Violation(f"torchrun ended with {training.process.returncode}, see {training.output.name}")
    if counts["kills"] < kills:
        raise Violation(f"the training ended after {counts['kills']} of {kills} kills")
    counts["snapshots verified"] += verify_all(training.run)
    counts["seconds of the longest recovery"] = round(longest)
    return counts


def differences(a: Path, b: Path) -> list[str]:
    """Return the names of what differs between two snapshots."""
    import torch

    from seamseg.checkpoints.snapshot import load_snapshot

    first, second = load_snapshot(a), load_snapshot(b)
    flat = [
        dict(torch.utils._pytree.tree_flatten_with_path([s.state_dict, s.training_meta, s.resume])[0])
        for s in (first, second)
    ]
    if flat[0].keys() != flat[1].keys():
        return [str(key) for key in flat[0].keys() ^ flat[1].keys()]
    same = lambda x, y: torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y  # noqa: E731
    return [torch.utils._pytree.keystr(key) for key, value in flat[0].items() if not same(value, flat[1][key])]


def main() -> int:
    """Run both trainings and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="seed of ranks and moments")
    parser.add_argument("--patience", type=float, default=240, help="seconds without progress that count as a hang")
    options = parser.parse_args()
    from support.micro import make_dataset, write_config

    folder = Path(tempfile.mkdtemp(prefix="kill_ranks_"))
    make_dataset(folder / "data", IMAGES, [1])
    write_config(folder / "toy.ini")
    epochs = -(-(8 * options.kills + 12) // PER_EPOCH)
    trainings = []
    try:
        trainings.append(calm := Training(folder, "calm", epochs, 0))
        # it makes progress as long as it writes
        torment(calm, 0, random.Random(0), options.patience + epochs)
        trainings.append(stormy := Training(folder, "stormy", epochs, 2 * options.kills + 5))
        counts = torment(stormy, options.kills, random.Random(options.seed), options.patience)
        log = (stormy.run / "training.log").read_text()
        counts["resumed"] = log.count("resumed from ")
        counts["snapshots passed over"] = log.count("skipped: ")
        for name in ("model_last.pth.tar", "model_best.pth.tar"):
            if found := differences(calm.run / name, stormy.run / name):
                raise Violation(f"{name}: {len(found)} entries differ from the undisturbed run, first {found[0]}")
    except Violation as violation:
        print(f"VIOLATION: {violation}; everything is left in {folder}")
        return 1
    finally:
        for training in trainings:
            training.end()
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    print(f"{epochs * PER_EPOCH} steps; weights, momentum, averages, chance and scores equal the undisturbed run's")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        sys.exit(work(sys.argv[2:]))
    sys.exit(main())
