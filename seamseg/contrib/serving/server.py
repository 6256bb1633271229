"""Run the application with uvicorn: its model, socket, signals and end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from PIL import Image
from starlette.types import ASGIApp

from seamseg.checkpoints.model_path import local_model
from seamseg.contrib.serving.app import Service, build_app
from seamseg.contrib.serving.options import ServeOptions
from seamseg.inference.predictor import Predictor, build_predictor, open_for_inference
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.output import echo

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")


class ServerEnd(NamedTuple):
    """Number of requests in progress that the end cut off, and whether threads still compute for them."""

    cut_off: int
    is_computing: bool


def serve_model(options: ServeOptions, debug: bool = False) -> ServerEnd:
    """Serve a model until SIGINT or SIGTERM; print its address on stdout when clients can connect."""
    # a line for each broken form
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    with bind(options.host, options.port) as bound:
        # outside the thread: Ctrl-C ends a download at once
        path = local_model(options.model)

        def opened() -> Predictor[Any]:
            given = (path, options.device, options.config, options.meta, options)
            predictor = build_predictor(open_for_inference(*given), options)
            # a device that fails ends the server, and the first request does not wait
            predictor.predict(Image.new("RGB", (640, 480)), keep_image=False)
            return predictor

        # in a thread that ends, with its OpenMP threads: one of the service runs the network, and with more OpenMP
        # threads than cores none spins between operators (docs/reference/performance.md)
        with ThreadPoolExecutor(1) as pool:
            predictor = pool.submit(opened).result()
        service = Service(predictor, Path(options.model).name, options, debug)
        name, port = bound.getsockname()[:2]
        name = f"[{name}]" if ":" in name else name
        line = f"serving {service.name} ({predictor.kind}, {predictor.network.device}) at http://{name}:{port}"
        app = build_app(service, accepted_hosts(bound))
        server = AppServer(app, lambda: echo(line, flush=True), options.timeout)
        try:
            server.run_on(bound)
        finally:
            # nobody waits any more for what the threads still compute
            closing = threading.Thread(target=service.close, daemon=True)
            closing.start()
            with suppress(KeyboardInterrupt):
                closing.join(0.1 if server.force_exit else 2)
    return ServerEnd(service.cut_off, closing.is_alive())


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen, so that clients are refused until the model is loaded."""
    if not 0 <= port < 1 << 16:
        raise InputError(f"`port={port}`: must be 0 (any free port) to {(1 << 16) - 1}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"`host={host}`: unknown: {getattr(error, 'strerror', None) or error}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # a port whose last server has just ended
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _cannot_listen(host, port, error) from None
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> SeamsegError:
    return SeamsegError(f"{host}:{port}: cannot listen: {error.strerror or error}; choose another `port`")


def accepted_hosts(bound: socket.socket) -> Sequence[str]:
    """Return the names in the header `Host` that are accepted: those of this machine if it only listens to itself."""
    host = bound.getsockname()[0]
    local = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return (*LOCAL_NAMES, host, f"[{host}]") if local else ("*",)


class AppServer(uvicorn.Server):
    """Finishes the requests in progress after a signal or :meth:`stop`; a second one, or `grace` seconds, cuts off."""

    def __init__(self, app: ASGIApp, on_start: Callable[[], None], grace: float) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(grace),
        )
        super().__init__(config)
        self._on_start = on_start
        self._grace = grace

    def run_on(self, bound: socket.socket) -> None:
        """Serve on a socket of :func:`bind`, and close it."""
        host, port = bound.getsockname()[:2]
        try:
            self.run(sockets=[bound])
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        finally:
            bound.close()

    def stop(self) -> None:
        """Begin to end, as SIGTERM does; from any thread."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals; uvicorn would raise them again at the end, which kills the process."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Receive a signal."""
        # uvicorn ignores a second SIGTERM
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in progress, or cut them off after the time for it.

        uvicorn cancels them then, but does not wait for their answers, and waits for clients that do not read without
        end even if `force_exit` is set.
        """
        end = time.monotonic() + self._grace
        for server in self.servers:
            server.close()
        tasks, connections = self.server_state.tasks, self.server_state.connections
        while tasks or connections:
            if time.monotonic() > end:
                self.force_exit = True
            for connection in list(connections):
                # those that were accepted last, too
                if not connection.transport.is_closing():
                    connection.shutdown()
                if self.force_exit and not tasks:
                    connection.transport.abort()
            if self.force_exit:
                for task in tasks:
                    task.cancel()
            await asyncio.sleep(0.1)
