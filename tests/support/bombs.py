"""Small files that would become large ones, and a process that measures what refusing them takes."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MIB = 1 << 20

_PROBE = """
import json, sys
from pathlib import Path
from seamseg.utils.errors import InputError
{setup}

def status(key):
    line = next(l for l in open("/proc/self/status") if l.startswith(key + ":"))
    return int(line.split()[1]) >> 10

def attempt(expression):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    try:
        message = "accepted: " + repr(eval(expression))[:100]
    except InputError as error:
        message = str(error)
    return message, status("VmHWM") - before

attempt({warm_up!r})
print(json.dumps([attempt(expression) for expression in {expressions!r}]))
"""


def refusals(setup: str, warm_up: str, expressions: Sequence[str], timeout: float = 120) -> list[tuple[str, int]]:
    """Evaluate expressions in a process of its own, after statements and an expression that loads what they need.

    Returns the message of the InputError of each, and by how many MiB the memory grew at most.
    """
    program = _PROBE.format(setup=setup, warm_up=warm_up, expressions=list(expressions))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(found) for found in json.loads(done.stdout.splitlines()[-1])]


def zeros_zip(path: Path, zeros: Mapping[str, int], **others: bytes) -> Path:
    """A zip file with members of so many MiB of deflated zeros, and others."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in others.items():
            archive.writestr(name.replace("__", "."), data)
        for name, size in zeros.items():
            with archive.open(name, "w", force_zip64=True) as member:
                for _ in range(size):
                    member.write(bytes(MIB))
    return path


def state_sizes(path: Path, size: int, packed: int | None = None) -> Path:
    """Make each directory entry of a zip file state another size, and another packed size."""
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        if packed is not None:
            data[at + 20 : at + 24] = packed.to_bytes(4, "little")
        data[at + 24 : at + 28] = size.to_bytes(4, "little")
        at = data.find(b"PK\x01\x02", at + 4)
    path.write_bytes(data)
    return path


def lossless_webp(width: int, height: int) -> bytes:
    fields = [(width - 1, 14), (height - 1, 14), (0, 7), *[(1, 4)] * 5]  # a code of one symbol for each channel
    number = at = 0
    for value, bits in fields:
        number, at = number | value << at, at + bits
    content = b"\x2f" + number.to_bytes(13, "little")
    chunk = b"WEBPVP8L" + len(content).to_bytes(4, "little") + content
    return b"RIFF" + len(chunk).to_bytes(4, "little") + chunk
