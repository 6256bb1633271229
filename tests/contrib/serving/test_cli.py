"""`seamseg serve` as a process: its line, its signals, its errors, and that it starts without torch."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.onnx_scenes import record, scene, write_network
from support.serving import Client, in_thread, png

import seamseg
from seamseg.cli.main import main
from seamseg.contrib.exported.network import ExportedNetwork

SLOW = """
import signal, sys, time
from seamseg.cli.main import main
from seamseg.contrib.exported.network import ExportedNetwork
compute = ExportedNetwork.run
def slow(self, *images):
    print("computing", flush=True)
    time.sleep(1)
    return compute(self, *images)
ExportedNetwork.run = slow
# a parent may ignore it, as a shell does for what runs in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
code = main(sys.argv[1:])
print("torch" in sys.modules)
sys.exit(code)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_network(tmp_path / "net.onnx", record("semantic"))


@contextmanager
def slow_server(model: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a server with a network that takes a second, and wait until it is tried."""
    environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
    command = [sys.executable, "-c", SLOW, "serve", str(model), "--port", "0"]
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
        (["--max-megapixels", "999"], "--max-megapixels 999.0: images above 201 megapixels are never decoded"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: unknown: "),
        (["--score-threshold", "0.5"], "--score-threshold has no effect: the model is of kind semantic"),
    ],
)
def test_wrong_options(words: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"seamseg serve: {message}")
    assert err.count("\n") == 1


def test_libraries_are_needed_from_the_start(model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    assert main(["serve", str(model), "--port", "70000"]) == 2
    said = "seamseg serve: needs python_multipart, which is not installed; pip install 'seamseg[serve]'\n"
    assert capsys.readouterr().err == said
