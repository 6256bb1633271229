"""Random mutations of ONNX files, each loaded and run in a process of its own with limits.

    python -m support.onnx_fuzz FOLDER bytes|graphs COUNT SEED DEVICE FILE...

Prints how many were refused, ran and failed, and each failure; files that failed are kept in the folder.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import seamseg
from seamseg.utils.errors import SeamsegError

MEMORY, SECONDS = 4 << 30, 20
REFUSED, RAN, FAILED = 10, 11, 12


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change, remove or insert bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at, how = rng.randrange(len(made)), rng.randrange(5)
        if how <= 1:
            made[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            made[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif how == 3:
            del made[at : at + rng.choice((1, 2, 8, 100))]
        else:  # a number or length of several bytes
            made[at : at + 1] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x01", b"9" * 20))
    return bytes(made)


_OPERATORS = "Add Mul Div Sub Pow Min Max Concat Reshape Transpose Softmax Resize MatMul Gemm Conv MaxPool Slice Gather"
_NUMBERS = (-(1 << 63), -2, -1, 0, 1, 2, 3, 5, 16, 1000, 1 << 20, 1 << 31, (1 << 63) - 1)


def mutate_graph(data: bytes, rng: random.Random) -> bytes:
    """Change attributes, operators, inputs, constants and stated shapes of a file that stays an ONNX file."""
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto.FromString(data)
    graph = model.graph
    names = [name for node in graph.node for name in node.output] + [tensor.name for tensor in graph.initializer]
    small = [tensor for tensor in graph.initializer if len(tensor.raw_data) <= 256]
    for _ in range(rng.choice((1, 1, 2))):
        node, how = rng.choice(graph.node), rng.randrange(7)
        if how == 0 and node.attribute:
            attribute = rng.choice(node.attribute)
            if attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_NUMBERS)
            elif attribute.type == onnx.AttributeProto.INT:
                attribute.i = rng.choice(_NUMBERS)
            elif rng.random() < 0.3:
                node.attribute.remove(attribute)
        elif how == 1:
            node.op_type = rng.choice(_OPERATORS.split())
        elif how == 2 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif how == 3 and small:
            tensor = rng.choice(small)
            values = numpy_helper.to_array(tensor).copy()
            flat = values.reshape(-1)
            if flat.size:
                flat[rng.randrange(flat.size)] = rng.choice(_NUMBERS[3:9])
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        elif how == 4:
            tensor = rng.choice(graph.initializer)
            tensor.dims[:] = rng.choice((tensor.dims[::-1], [1, *tensor.dims], [int(np.prod(tensor.dims))]))
        elif how == 5 and graph.value_info:
            graph.value_info.remove(rng.choice(graph.value_info))
        elif how == 6 and node.input:
            node.input[:] = rng.choice((node.input[::-1], node.input[:-1], [*node.input, rng.choice(names)]))
    if rng.random() < 0.8:  # what they state would not be true any more
        del graph.value_info[:]
    return model.SerializeToString()


def attempt(path: Path, device: str, photo: np.ndarray) -> int:
    """Load a file and predict a photo; the exit code of the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        seamseg.load(path, device=device).predict(photo)
    except SeamsegError as error:
        print(str(error).replace("\n", "|NEWLINE|"))
        return FAILED if "\n" in str(error) else REFUSED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}"[:300])
        return FAILED
    return RAN


def fuzz(
    folder: Path, count: int, seed: int, device: str, paths: list[Path], graphs: bool
) -> tuple[Counter[str], list[str]]:
    """Try mutations of files in turns; how many of them ended how, and what failed."""
    rng, photo, results, failures = random.Random(seed), np.zeros((90, 140, 3), np.uint8), Counter[str](), []
    # what children would import
    seamseg.load(paths[0], device="cpu").predict(photo)
    if device.startswith("openvino"):
        import openvino.frontend  # noqa: F401
    for number in range(count):
        target, log = folder / f"{seed}_{number}.onnx", folder / "log"
        change = mutate_graph if graphs else mutate
        target.write_bytes(change(paths[number % len(paths)].read_bytes(), rng))
        child = os.fork()
        if child == 0:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            code = attempt(target, device, photo)
            sys.stdout.flush()
            os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        name = {REFUSED: "refused", RAN: "ran", FAILED: "failed"}.get(status, "crashed")
        results[name] += 1
        if name in ("failed", "crashed"):
            failures.append(f"{target.name} {status}: {log.read_text(errors='replace')[-300:]}")
        else:
            target.unlink()
    return results, failures


def main() -> None:
    folder, what, count, seed, device, *paths = sys.argv[1:]
    given = Path(folder), int(count), int(seed), device, [Path(path) for path in paths]
    results, failures = fuzz(*given, what == "graphs")
    print(dict(results))
    print(*failures, sep="\n")


if __name__ == "__main__":
    main()
