"""`seamseg serve` as a process: its line, its signals, its errors, and that it starts without torch."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.onnx_scenes import record, scene, write_network
from support.serving import Client, in_thread, png
from support.shared_models import write_run

import seamseg
from seamseg.cli.main import main
from seamseg.inference.exported import ExportedNetwork

SLOW = """
import os, signal, sys, time
from seamseg.cli.main import main
from seamseg.inference.exported import ExportedNetwork
compute = ExportedNetwork.run
pauses = os.environ["SECONDS"].split()
def slow(self, images):
    print("computing", flush=True)
    time.sleep(float(pauses.pop(0) if len(pauses) > 1 else pauses[0]))
    return compute(self, images)
ExportedNetwork.run = slow
# a parent may ignore it, as a shell does for what runs in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
code = main(sys.argv[1:])
print("torch" in sys.modules)
sys.exit(code)
"""

NARROW = """
import sys
from support.micro import narrow_body
from seamseg.cli.main import main
with narrow_body():
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_network(tmp_path / "net.onnx", record("semantic"))


@contextmanager
def slow_server(model: Path, seconds: str = "1", *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server with a network that takes `seconds`, one number a call, and wait until it is tried."""
    environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1]), "SECONDS": seconds}
    command = [sys.executable, "-c", SLOW, "serve", str(model), "--port", "0", *options]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "computing\n", "the network is tried before clients come"
        yield process
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_while_the_network_is_tried(model: Path) -> None:
    with slow_server(model) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "False\n", "seamseg serve: interrupted\n")


def test_a_second_ctrl_c_does_not_wait(model: Path) -> None:
    with slow_server(model, "120") as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert (process.returncode, process.communicate()[1]) == (-signal.SIGINT, "")


def test_a_signal_ends_it_after_the_requests_in_progress(model: Path) -> None:
    with slow_server(model) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"serving net\.onnx \(semantic, cpu\) at http://127\.0\.0\.1:(\d+)\n", line)
        assert found, line
        client: Any = Client(int(found[1]), None)  # type: ignore[arg-type]
        sent = [in_thread(client.predict, png(scene((90, 140)))) for _ in range(2)]
        assert process.stdout.readline() == "computing\n"
        # the other one waits, or is computed, too
        process.send_signal(signal.SIGTERM)
        for thread, _ in sent:
            thread.join(60)
        assert [answers[0].status for _, answers in sent] == [200, 200]
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.replace("computing\n", ""), err) == (0, "False\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_ends_it_while_the_network_computes(model: Path, times: int) -> None:
    # the first request of the two, and after the signal the other one, would keep the network busy for ten minutes
    timeout = "2" if times == 1 else "600"
    with slow_server(model, "0 600", "--timeout", timeout) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        client: Any = Client(port, None)  # type: ignore[arg-type]
        sent = [in_thread(client.predict, png(scene((90, 140)))) for _ in range(2)]
        assert process.stdout.readline() == "computing\n"
        process.send_signal(signal.SIGTERM)
        with suppress(ConnectionRefusedError):
            while times == 2:
                # until the signal has taken effect
                socket.create_connection(("127.0.0.1", port)).close()
                time.sleep(0.05)
        if times == 2:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        for thread, _ in sent:
            thread.join(60)
    assert [answers[0].status for _, answers in sent] == [504 if times == 1 else 503] * 2
    said = "" if times == 1 else "2 requests in progress were cut off\n"
    assert (process.returncode, err) == (times - 1, said)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_openmp_has_threads_for_one_thread_only(tmp_path: Path) -> None:
    # with two teams there are more threads than cores, none spins, and small networks are slow
    run = write_run(tmp_path / "run", "semantic")
    command = [sys.executable, "-c", NARROW, "serve", str(run), "--port", "0", "--device", "cpu"]
    paths = [str(Path(seamseg.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    # as many threads as asked for, whatever the number of cores
    environment["MKL_DYNAMIC"] = "FALSE"
    counts = []
    with ExitStack() as stack:
        processes = []
        for threads in ("1", "9"):
            own = {**environment, "OMP_NUM_THREADS": threads}
            processes.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        for process in processes:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            client: Any = Client(port, None)  # type: ignore[arg-type]
            assert client.predict(png(scene((256, 320)))).status == 200
            counts.append(len(os.listdir(f"/proc/{process.pid}/task")))
    # one more or less may decode photos
    assert 7 <= counts[1] - counts[0] <= 9


def test_a_port_in_use(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExportedNetwork, "run", lambda *_: pytest.fail("the port is tried first"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(model), "--port", str(port)]) == 1
    expected = f"seamseg serve: 127.0.0.1:{port}: cannot listen: Address already in use; choose another --port\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: unknown: "),
        (["--max-megapixels", "999"], "--max-megapixels 999.0: no photo above 201 megapixels is decoded"),
        (["--score-threshold", "0.5"], "--score-threshold has no effect: the model is of kind semantic"),
    ],
)
def test_wrong_options(words: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"seamseg serve: {message}")
    assert err.count("\n") == 1


def test_a_network_that_fails_ends_it(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the device is broken")

    monkeypatch.setattr(ExportedNetwork, "run", fail)
    before = threading.active_count()
    assert main(["serve", str(model), "--port", "0"]) == 1
    assert "the device is broken" in capsys.readouterr().err
    assert threading.active_count() == before


@pytest.mark.parametrize("library", ["uvicorn", "python_multipart"])
def test_libraries_are_needed_from_the_start(
    library: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["serve", str(model), "--port", "70000"]) == 2
    said = f"seamseg serve: needs {library}, which is not installed; pip install 'seamseg[serve]'\n"
    assert capsys.readouterr().err == said
