"""Engines that run ONNX files, behind one interface: ONNX Runtime and OpenVINO; no torch.

An ONNX file is a program: open those that you trust.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.errors import InputError, one_line
from seamseg.utils.parallel import available_cores

OPENVINO = "openvino"
"""Device of files that OpenVINO runs: `openvino` on the CPU, or `openvino:DEVICE`."""

Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], list[np.ndarray]]
"""From the names of outputs, and the inputs by name, to the outputs."""


@dataclass(frozen=True)
class OnnxSession:
    """An opened ONNX file; `outputs` are the names of the outputs of the graph."""

    uses_torch = False

    run: Run
    exported: ExportedMetadata
    outputs: Sequence[str]
    device: str = "cpu"


def open_onnx(path: Path, device: str = "cpu") -> OnnxSession:
    """Open an ONNX file of `seamseg export` with ONNX Runtime ("auto", "cpu") or OpenVINO ("openvino[:DEVICE]")."""
    engine, _, part = device.partition(":")
    if engine == OPENVINO:
        return _open_openvino(path, part or "CPU")
    if device not in ("auto", "cpu"):
        raise InputError(f"`device={device}`: ONNX files run on the CPU, or on {OPENVINO}[:DEVICE]")
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(f"{path}: needs onnxruntime ({error}): pip install 'seamseg[onnx]'") from None
    content = _read(path)
    try:
        session = onnxruntime.InferenceSession(content, onnxruntime_settings(), providers=["CPUExecutionProvider"])
    except Exception as error:  # its types are known to onnxruntime only
        raise _unreadable(path, error) from None
    exported = _exported(session.get_modelmeta().custom_metadata_map, path)
    return OnnxSession(session.run, exported, [output.name for output in session.get_outputs()])


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _exported(metadata: Mapping[str, Any], path: Path) -> ExportedMetadata:
    if METADATA_KEY not in metadata:
        raise InputError(f"{path}: holds no metadata of seamseg: it was not written by `seamseg export`")
    return ExportedMetadata.from_json(metadata[METADATA_KEY], str(path))


def onnxruntime_settings() -> Any:
    """Return the options of sessions of ONNX Runtime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # it prints names of nodes as they are; failures are raised, too
    settings.intra_op_num_threads = _threads()
    if not _adds_int8_exactly():
        settings.add_session_config_entry("session.x64quantprecision", "1")
    # threads that spin slow down those that decode and write
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


@lru_cache(maxsize=1)
def openvino_core() -> Any:
    """Return the only `openvino.Core` of this process, which is never dropped.

    A core gives the thread that loads its CPU plugin an alternate signal stack. When several are dropped, the stack of
    the first, which no longer exists, stays in use: the next signal that Python handles would end the process by
    SIGSEGV.
    """
    import openvino

    return openvino.Core()


def _open_openvino(path: Path, part: str) -> OnnxSession:
    try:
        import openvino.frontend
    except ImportError as error:
        raise InputError(f"{path}: needs openvino ({error}): pip install 'seamseg[openvino]'") from None
    core = openvino_core()
    known = core.available_devices
    if part not in known:
        shown = ", ".join(f"{OPENVINO}:{name}" for name in known)
        raise InputError(f"`device={OPENVINO}:{part}`: OpenVINO has {shown}")
    content = _read(path)
    try:
        # the reader of all formats prints errors of those that do not fit
        frontend = openvino.frontend.FrontEndManager().load_by_framework("onnx")
        model = frontend.convert(frontend.load(io.BytesIO(content)))
        # left alone, some CPUs compute in bfloat16
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if part == "CPU":
            settings["INFERENCE_NUM_THREADS"] = _threads()
        try:
            compiled = core.compile_model(model, part, settings)
        except RuntimeError as error:
            if "snippets" not in str(error):
                raise
            # its fusion of small operators fails on some graphs: it takes reductions of the last axis only
            settings["SNIPPETS_MODE"] = "DISABLE"
            compiled = core.compile_model(model, part, settings)
    except Exception as error:  # RuntimeError and types of its own
        raise _unreadable(path, error) from None
    key = ["framework", METADATA_KEY]
    exported = _exported({METADATA_KEY: model.get_rt_info(key).astype(str)} if model.has_rt_info(key) else {}, path)
    names = [output.get_any_name() for output in model.outputs]
    request, turn = compiled.create_infer_request(), threading.Lock()

    def run(names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with turn:
            # with one thread, `infer` raises no error, and returns earlier results instead
            request.start_async(dict(inputs))
            request.wait()
            return [request.get_tensor(name).data.copy() for name in names]

    return OnnxSession(run, exported, names, f"{OPENVINO}:{part}")


def _threads() -> int:
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and int(threads) else available_cores()


def _adds_int8_exactly() -> bool:
    """Return whether the CPU adds products of int8 in 32 bits; others use 16, which saturate."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return re.search(r"^flags\s*:.*\b(avx512_vnni|avx_vnni)\b", flags, re.MULTILINE) is not None


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not an ONNX file, truncated, or of another version ({one_line(error)[:200]})")
