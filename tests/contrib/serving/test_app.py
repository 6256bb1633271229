"""The server, as a process and through connections: uploads, limits, errors, metrics, batches; it goes on."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_scenes import record, scene, write_network
from support.serving import FAILS, Client, RedNetwork, in_thread, photo, png, ready_network, red_predictor, serving

import seamseg
import seamseg.contrib.serving.app
from seamseg.cli.main import main
from seamseg.contrib.exported.network import ExportedNetwork
from seamseg.contrib.serving.app import build_app
from seamseg.contrib.serving.batching import Batcher

FORM = {"Content_Type": "multipart/form-data; boundary=XX"}


def form(data, name="file", filename='; filename="../../etc/passwd"'):
    start = f'--XX\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
    return start.encode() + data + b"\r\n--XX--\r\n"


def head(length, path="/predict"):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def network():
    return RedNetwork()


@pytest.fixture(scope="module")
def client():
    with serving(red_predictor(ready_network()), max_upload=0.25, max_megapixels=0.01) as one:
        yield one


def test_body_and_form(client):
    data = png(photo(red=2))
    segment = {"category_id": 2, "class": "tree", "score": None, "bbox": [0, 0, 20, 12], "area": 240}
    for answer in (client.predict(data), client.predict(form(data), **FORM)):
        assert (answer.status, answer.json["segments"]) == (200, [segment])
        assert answer.headers["content-type"] == "application/json"
    # streams without a stated length
    assert client.predict(iter([data[:20], data[20:]])).status == 200
    assert client.predict(iter([bytes(200_000)] * 2)).status == 413


@pytest.mark.parametrize(
    ("data", "query", "headers", "status", "message"),
    [
        (b"", "", {}, 400, "image: empty: send an image as the body, or as `file` of a form"),
        (b"text", "", {}, 400, "image: not an image, or not of a format that is read .*"),
        (png(photo())[:50], "", {}, 400, "image: corrupt image: .*"),
        (png(photo(size=(101, 101))), "", {}, 400, "image: 101 x 101 pixels are above the limit of 0.01 megapixels"),
        (form(bytes(300_000)), "", FORM, 413, "image: is larger than 256 KiB, the limit of an upload"),
        (bytes(20_000_000), "", {}, 413, "image: is larger than 256 KiB, the limit of an upload"),
        (form(bytes(20_000_000)), "", FORM, 413, "image: is larger than 256 KiB, the limit of an upload"),
        (form(png(photo()), "picture"), "", FORM, 400, "the form has no file named `file` with .*; it has picture"),
        (form(png(photo()), filename=""), "", FORM, 400, "the form has no file named `file` with a `filename=`; .*"),
        (b"nonsense", "", FORM, 400, "broken form: .*"),
        (png(photo()), "?format=gif", {}, 400, "format=gif: a model of kind semantic has json, png, overlay, view"),
        (png(photo(red=FAILS)), "", {}, 500, "the prediction failed; the log of the server has the reason"),
    ],
)
def test_bad_uploads_are_a_line_of_json(client, data, query, headers, status, message, capfd):
    answer = client.predict(data, query, **headers)
    assert answer.status == status, answer.body
    assert list(answer.json) == ["error"]
    assert re.fullmatch(message, answer.json["error"])
    assert capfd.readouterr().err == ("POST /predict: ValueError: a red pixel\n" if status == 500 else "")
    assert client.predict(png(photo())).status == 200, "the server goes on"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/../../etc/passwd", {}, 404),
        ("GET", "/predict", {}, 405),
        ("GET", "/health", {"Host": "evil.example"}, 400),
        ("GET", "/health", {"Host": "[::1]:99"}, 200),
    ],
)
def test_routes_and_hosts(client, method, path, headers, status):
    answer = client.request(method, path, None, headers)
    assert answer.status == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


def test_pages_of_other_sites():
    data, page = png(photo()), {"Origin": "https://a.example"}
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with serving(red_predictor(ready_network()), cors="https://a.example, http://localhost:3000") as client:
        for answer in (client.predict(data, **page), client.request("OPTIONS", "/predict", None, asked)):
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://a.example")
        # also errors can be read
        assert "access-control-allow-origin" in client.predict(b"", **page).headers
        other = client.predict(data, **page | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
    with serving(red_predictor(ready_network()), cors="*") as client:
        assert client.predict(data, **page).headers["access-control-allow-origin"] == "*"


def test_openapi_describes_the_routes(client):
    answer = client.request("GET", "/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    app = build_app(client.service)
    routes = {route.path: {method.lower() for method in route.methods - {"HEAD"}} for route in app.routes}
    assert {path: set(methods) for path, methods in answer.json["paths"].items()} == routes
    predict = answer.json["paths"]["/predict"]["post"]
    (choice,) = predict["parameters"]
    assert choice["schema"]["enum"] == client.request("GET", "/health").json["formats"]
    shown = predict["responses"]["200"]["content"]
    for name in choice["schema"]["enum"]:
        assert client.predict(png(photo()), f"?format={name}").headers["content-type"] in shown


def test_health_and_metrics():
    with serving(red_predictor(ready_network()), name="<b>.onnx") as client:
        health = client.request("GET", "/health")
        assert health.status == 200
        wanted = {"status": "ready", "model": "<b>.onnx", "kind": "semantic"}
        assert wanted.items() <= health.json.items()
        page = client.request("GET", "/")
        assert "<title>&lt;b&gt;.onnx · seamseg</title>" in page.body.decode()
        assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
        for data in (png(photo()), png(photo()), b"text"):
            client.predict(data)
        metrics = client.request("GET", "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        lines = metrics.body.decode().splitlines()
    counts = ("request_seconds_count 2.0", "batch_size_count 2.0", "in_progress 0.0")
    answers = (("/predict", 200, 2.0), ("/predict", 400, 1.0), ("/health", 200, 1.0))
    wanted = [f"seamseg_{name}" for name in counts]
    wanted += [f'seamseg_requests_total{{path="{p}",status="{s}"}} {n}' for p, s, n in answers]
    assert set(wanted) <= set(lines)


def test_a_full_queue_refuses_at_once(network):
    with serving(red_predictor(network), queue=2) as client:
        threads = [in_thread(client.predict, png(photo(k))) for k in range(2)]
        until(lambda: client.service._in_progress == 2)
        refused = client.predict(png(photo(2)))
        assert refused.status == 503
        assert refused.json["error"].startswith("busy: 2 requests are in progress")
        assert refused.headers["retry-after"] == "1"
    # the context stops the server, then opens the gate: requests in progress are finished
    for thread, answers in threads:
        thread.join(60)
        assert answers[0].status == 200
    assert client.service.cut_off == 0
    assert 2 not in network.seen


def test_the_time_limit(network):
    with serving(red_predictor(network), timeout=1.5) as client:
        threads = [in_thread(client.predict, png(photo(k))) for k in range(2)]
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as slow:
            slow.sendall(head(100) + b"abc")
            for thread, answers in threads:
                thread.join(60)
                assert (answers[0].status, answers[0].json) == (504, {"error": "no result within 1.5 seconds"})
            time.sleep(1)
            # the rest comes after the limit; what it is answered then is nobody's loss
            slow.sendall(bytes(97))
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        network.gate.set()
        until(lambda: client.predict(png(photo(7))).status == 200)
    assert len([k for k in network.seen if k != 7]) == 1, "what waited is not computed"


def test_a_request_that_the_end_cuts_off_is_answered(network, capfd):
    data = png(photo())
    with serving(red_predictor(network), grace=600) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as waiting:
            waiting.sendall(head(len(data)) + data)
            until(lambda: network.batches)
            # as a second SIGINT
            client.server.should_exit = client.server.force_exit = True
            answer = b"".join(iter(lambda: waiting.recv(1000), b""))
        network.gate.set()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b'{"error":"the server was stopped before the result"}')
    assert client.service.cut_off == 1
    assert capfd.readouterr().err == ""


def test_photos_are_not_written_to_disk(client, monkeypatch):
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda self: pytest.fail("written to disk"))
    assert client.predict(form(png(photo(), "BMP") + bytes(200_000)), **FORM).status == 200


def test_a_photo_that_fails_fails_alone(network):
    batcher = Batcher(red_predictor(network), 4)
    batcher.submit(photo(99))
    assert network.started.acquire(timeout=60)
    futures = [batcher.submit(photo(k, red=FAILS if k == 1 else 2)) for k in range(3)]
    network.gate.set()
    for k in (0, 2):
        assert np.array_equal(futures[k].result(60).semantic, np.full((12, 20), 2))
    with pytest.raises(ValueError, match="a red pixel"):
        futures[1].result(60)
    waiting = batcher.submit(photo(7))
    batcher.close()
    assert waiting.result(0).size == (12, 20), "the thread goes on, and closing computes what waits"
    assert not batcher.alive
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit(photo(0))


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
        (["--queue", "0"], "--queue 0: must be positive"),
        (["--timeout", "nan"], "--timeout nan: must be positive"),
        (["--cors", "*,https://A.example"], "--cors https://A.example: an origin is https://name"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: unknown: "),
        (["--score-threshold", "0.5"], "--score-threshold has no effect: the model is of kind semantic"),
    ],
)
def test_wrong_options(words: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(model), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"seamseg serve: {message}")
    assert err.count("\n") == 1
