"""Compare a training on two simulated nodes of one machine with the same one within a node.

    sudo python benchmarks/two_nodes.py [--epochs 2] [--restart]

Makes two isolated network namespaces joined by a veth pair, starts `torchrun --nnodes 2` in both, and compares the
weights with those of two processes on one node. With `--restart` a process of the second node is killed in the middle;
torchrun restarts all processes, and with `--resume auto` the weights must be the same. Cleans up
after itself. Needs root and `ip` (iproute2).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seamseg.checkpoints.snapshot import NETWORK_MODULES, load_snapshot

TOY_CITY = Path(__file__).parents[1] / "configs" / "toy_city_r18.ini"
ADDRESSES = ("10.231.77.1", "10.231.77.2")
PORT = 29500
SETTINGS = (
    "scheduler.burn_in_steps=2",
    "dataloader.train_batch_size=2",
    "general.precision=fp32",
    "body.normalization_mode=syncbn",
    "general.val_interval=1",
    "general.log_interval=1",
)


def run(*words: object) -> None:
    """Run a command that must succeed."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SystemExit(f"two_nodes.py: {' '.join(map(str, words))}: {reason}")


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """Make two network namespaces named after this process, joined by the devices sveth0 and sveth1."""
    names = (f"snode{os.getpid()}a", f"snode{os.getpid()}b")
    devices = ("sveth0", "sveth1")
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", devices[0], "netns", names[0], "type", "veth", "peer", devices[1], "netns", names[1])
        for name, device, address in zip(names, devices, ADDRESSES):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def training(folder: Path, name: str, epochs: int, resume: bool) -> list[str]:
    """Return the arguments after those of torchrun."""
    words = ["-m", "seamseg", "train", TOY_CITY, folder / "city", "--log-dir", folder / name, "--device", "cpu"]
    for setting in (*SETTINGS, f"scheduler.epochs={epochs}"):
        words += ["--set", setting]
    return [str(w) for w in (*words, *(("--resume", "auto") if resume else ()))]


def torchrun(*options: object) -> list[str]:
    """Return the launcher of this Python."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", *[str(o) for o in options]]


def on_one_node(folder: Path, epochs: int, patience: float = 1800) -> None:
    """Train with two processes on this node."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = training(folder, "one_node", epochs, False)
    finish([subprocess.Popen([*command, *words], env=environment())], patience)


def finish(launchers: list[subprocess.Popen], patience: float) -> None:
    """Wait until all processes have succeeded; end them in any case."""
    deadline = time.monotonic() + patience
    try:
        codes = [launcher.wait(max(1.0, deadline - time.monotonic())) for launcher in launchers]
    finally:
        end(launchers)
    if any(codes):
        raise SystemExit(f"two_nodes.py: the launchers ended with {codes}")


def end(launchers: list[subprocess.Popen]) -> None:
    """Terminate the launchers that still run, which ends their processes, too."""
    for launcher in launchers:
        launcher.terminate()
    for launcher in launchers:
        try:
            launcher.wait(60)
        except subprocess.TimeoutExpired:
            launcher.kill()


def environment(**more: str) -> dict[str, str]:
    """Return the environment of this process, with one thread a process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "SEAMSEG_TIMEOUT_MINUTES": "2", **more}


def on_two_nodes(folder: Path, epochs: int, restart: bool, patience: float = 1800) -> None:
    """Train with one process in each namespace; all must end within `patience` seconds."""
    name = "restarted" if restart else "two_nodes"
    with two_namespaces() as names:
        nodes = []
        for number, namespace in enumerate(names):
            options = ["--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}"]
            options += ["--rdzv-id", "seamseg", "--rdzv-conf", f"is_host={1 - number}"]
            options += ["--local-addr", ADDRESSES[number], "--max-restarts", 2 if restart else 0]
            command = ["ip", "netns", "exec", namespace, *torchrun(*options), *training(folder, name, epochs, restart)]
            # the store of the first start would be gone with the process that held it
            env = environment(GLOO_SOCKET_IFNAME=f"sveth{number}", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
            nodes.append(subprocess.Popen(command, env=env))
        if restart:
            try:
                kill_when_saved(nodes[1], folder / name / "model_last.pth.tar", patience)
            except BaseException:
                end(nodes)
                raise
        finish(nodes, patience)


def kill_when_saved(node: subprocess.Popen, snapshot: Path, patience: float) -> None:
    """Kill the training process of a launcher once a snapshot exists."""
    deadline = time.monotonic() + patience
    while not snapshot.exists():
        if time.monotonic() > deadline or node.poll() is not None:
            raise SystemExit("two_nodes.py: no snapshot appeared")
        time.sleep(0.1)
    # `ip netns exec` has become the launcher
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    training = next(int(c) for c in children if b"\0seamseg\0" in Path(f"/proc/{c}/cmdline").read_bytes())
    print(f"killing process {training} of the second node", flush=True)
    os.kill(training, signal.SIGKILL)


def difference(folder: Path, names: tuple[str, str]) -> float:
    """Return the largest difference of any tensor of the last snapshots of two runs."""
    states = []
    for name in names:
        saved = load_snapshot(folder / name / "model_last.pth.tar").state_dict
        states.append({f"{part}.{key}": t for part in NETWORK_MODULES for key, t in saved.get(part, {}).items()})
    one, two = states
    if one.keys() != two.keys():
        raise SystemExit("two_nodes.py: the snapshots hold different parts")
    return max(float((one[key].double() - two[key].double()).abs().max()) for key in one)


def main() -> None:
    """Train in both ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--restart", action="store_true", help="also kill a process, and let it be restarted")
    arguments = parser.parse_args()
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise SystemExit("two_nodes.py: network namespaces need root and the command `ip` (package iproute2)")
    # a plain kill must clean up, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="two_nodes."))
    try:
        make_city(folder, arguments.images)
        on_one_node(folder, arguments.epochs)
        on_two_nodes(folder, arguments.epochs, restart=False)
        verdict("two nodes against one", difference(folder, ("one_node", "two_nodes")))
        if arguments.restart:
            on_two_nodes(folder, arguments.epochs, restart=True)
            verdict("killed and restarted against one run", difference(folder, ("one_node", "restarted")))
    finally:
        shutil.rmtree(folder)


def make_city(folder: Path, images: int) -> None:
    """Write a small toy city to `folder/city`."""
    seamseg = (sys.executable, "-m", "seamseg", "prepare")
    run(*seamseg, "toy-city", folder / "raw", "--train", images, "--val", 2, "--size", "128x256", "--workers", 1)
    run(*seamseg, "cityscapes", folder / "raw", folder / "city")


def verdict(what: str, largest: float) -> None:
    """Print the difference, and exit with an error if the weights differ."""
    print(f"{what}: {'the same weights to the bit' if largest == 0 else f'weights differ by up to {largest:.1e}'}")
    if largest != 0:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
