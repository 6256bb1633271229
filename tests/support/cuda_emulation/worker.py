"""Serves calls of the operators in a process of its own, which they may end. Started by `emulator.Worker`.

Arguments are libraries built with sanitizers: of `seamseg.maps.idmaps`, of the C++ kernels (`seamseg_checked`) and of
the CUDA kernels (`seamseg_emulated`), while `seamseg` is plain torch (by SEAMSEG_PLAIN_OPS). Without any, all are as
they are installed. Requests and answers are pickled, each after its length.
"""

import ctypes
import importlib
import io
import os
import pkgutil
import resource
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import seamseg.ops
from seamseg.maps.idmaps import library as maps

SPARE_BYTES = 4 << 30


def load_operators() -> None:
    """Load all files of `seamseg.ops`: an operator exists once its file is."""
    for module in pkgutil.iter_modules(seamseg.ops.__path__):
        importlib.import_module(f"seamseg.ops.{module.name}")


def define_copies() -> list[torch.library.Library]:
    """The schemas of seamseg's operators again, for the libraries that are loaded next."""
    names = sorted({name for name in torch._C._dispatch_get_all_op_names() if name.startswith("seamseg::")})
    copies = [torch.library.Library(name, "FRAGMENT") for name in ("seamseg_checked", "seamseg_emulated")]
    for name in names:
        schema = str(getattr(torch.ops.seamseg, name.partition("::")[2].partition(".")[0]).default._schema)
        for copy in copies:
            copy.define(schema.removeprefix("seamseg::"))
    copies[-1].define("example(str name, Tensor x) -> Tensor")
    return copies


def read(stream: io.BufferedReader) -> Any:
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return torch.load(io.BytesIO(stream.read(*struct.unpack("<q", head))), weights_only=False)


def write(stream: io.BufferedWriter, value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    stream.write(struct.pack("<q", len(buffer.getvalue())) + buffer.getvalue())
    stream.flush()


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def main() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints must not get between the answers
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    load_operators()
    libraries = sys.argv[1:]
    copies = define_copies() if libraries else []
    if libraries:
        maps.functions = maps.load(libraries.pop(0))
        for library in libraries:
            torch.ops.load_library(library)
        torch.use_deterministic_algorithms(True)  # memory that is not initialised is full of NaN
        set_seed = ctypes.CDLL(libraries[-1]).seamseg_emulation_seed
        set_seed.argtypes = [ctypes.c_uint64]
    else:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES,) * 2)
    write(answers, [copy.ns for copy in copies])
    while True:
        try:
            library, name, arguments, seed, wanted = read(requests)
        except EOFError:
            return
        if libraries:
            set_seed(seed)
        try:
            owner = importlib.import_module(library) if "." in library else getattr(torch.ops, library)
            result = getattr(owner, name)(*arguments)
            if not wanted:
                for tensor in tensors_of(result):
                    if tensor.requires_grad:
                        tensor.sum().backward(retain_graph=True)
            answer = (None, result, arguments) if wanted else (None, None, None)
        except Exception as error:
            answer = (type(error).__name__, str(error), None)
        write(answers, answer)


if __name__ == "__main__":
    main()
