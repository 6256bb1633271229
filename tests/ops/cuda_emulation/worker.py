"""Serves calls of the operators in a process of its own, which the sanitizers may end. Started by `emulator.Emulator`.

`seamseg` is plain torch here, `seamseg_checked` the C++ kernels and `seamseg_emulated` the CUDA kernels, both of them
built with sanitizers. Requests and answers are pickled, each after its length.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import pkgutil
import struct
import sys

import torch

import seamseg.ops

for module in pkgutil.iter_modules(seamseg.ops.__path__):  # an operator exists once its file is loaded
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


def read(stream: io.BufferedReader) -> object:
    """The next object, or the end of the program."""
    head = stream.read(8)
    if len(head) < 8:
        sys.exit(0)
    return torch.load(io.BytesIO(stream.read(*struct.unpack("<q", head))), weights_only=False)


def write(stream: io.BufferedWriter, value: object) -> None:
    """Send an object."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    stream.write(struct.pack("<q", len(buffer.getvalue())) + buffer.getvalue())
    stream.flush()


def main() -> None:
    """Answer until nobody asks."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints must not get between the answers
    torch.set_num_threads(int(os.environ.get("SEAMSEG_WORKER_THREADS", "1")))
    torch.use_deterministic_algorithms(True)  # memory that is not initialised is full of NaN
    copies = define_copies()
    for library in sys.argv[1:]:
        torch.ops.load_library(library)
    set_seed = ctypes.CDLL(sys.argv[-1]).seamseg_emulation_seed
    set_seed.argtypes = [ctypes.c_uint64]
    write(answers, [copy.ns for copy in copies])
    while True:
        library, name, arguments, seed = read(requests)
        set_seed(seed)
        try:
            result = getattr(getattr(torch.ops, library), name)(*arguments)
            write(answers, (None, result, arguments))
        except Exception as error:
            write(answers, (type(error).__name__, str(error), None))


if __name__ == "__main__":
    main()
