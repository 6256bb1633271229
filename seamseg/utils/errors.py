"""Errors caused by usage or input. Each message is one line with the problem, its location and the remedy.

A message names a parameter in backquotes, with its value or without: "`size` must be positive; use `device=cpu`". The
command line shows its flags in their place.
"""

from __future__ import annotations

import difflib
import errno
import gc
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, TypeVar

Base = TypeVar("Base")

_UNPRINTABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Controls of terminals and of the direction of text, letters without width, and halves of characters. The joiners
U+200C and U+200D stay: Persian and emoji need them."""
_LONG_WORD = re.compile(r"(?<!\S)\S{301,}")
_LONGEST_WORD, _LONGEST = 300, 2000
"""Characters of a word and of a message: texts of files, and names in them, are part of some."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_LOST = re.compile(r"AcceleratorError: |RuntimeError: DataLoader worker \(pid")
"""Errors of a device that is lost, and of a worker process, which torch reports by an error at any place."""
_OUT_OF_MEMORY = re.compile(
    # of CUDA, cuDNN, cuBLAS, Triton, HIP and compilers; not "out of shared memory"
    r"out[ _]?of[ _]?memory|_ALLOC(ATION)?_FAILED|cudaErrorMemoryAllocation"
    # of torch's allocator of the CPU, C++, glibc, ONNX Runtime and OpenVINO; static TLS is that of a library to load
    r"|(can't|cannot|failed to) allocate (\d+ bytes of )?memory(?! in static TLS)|not enough memory|bad[ _]alloc"
    # of oneDNN, for a buffer and for generated code; "a primitive descriptor" is about arguments
    r"|could not create a (memory object|primitive(?! desc))"
    # of C++ operators and packages: torch up to 2.11 does not pass on the reason
    r'|("aten::(new_)?(empty|zeros)\w*"|aoti_torch_(new_)?empty\w*).*API call failed',
    re.IGNORECASE | re.DOTALL,
)
_MOST_NAMES = 10_000
"""Known names among which a similar one is searched: half a second."""


class SeamsegError(Exception):
    """The work failed: the command line prints the message, unless it is `reported`, and exits with `exit_code`."""

    exit_code = 1
    reported = False

    def __str__(self) -> str:
        return harmless(super().__str__())


def harmless(text: str) -> str:
    """Return a message made :func:`printable`, without the middle of long words and of a long message."""
    return _shortened(_LONG_WORD.sub(lambda word: _shortened(word[0], _LONGEST_WORD), printable(text)), _LONGEST)


def printable(text: str) -> str:
    """Return a text with escapes for what a terminal would act on, what reorders or hides text, and bytes of no UTF-8.

    Line breaks and tabs stay; :func:`one_line` makes blanks of them.
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_of_item(error: BaseException) -> bool:
    """Return whether an error concerns one of many images or files, so that the others go on.

    Errors of a full or read-only disk, a lost device and a lost worker process concern all.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _DISK:
            return False
        if _LOST.match(f"{type(found).__name__}: {found}"):
            return False
        found = found.__cause__ or found.__context__
    return True


def describe_error(error: BaseException) -> str:
    """Return a short one-line description of an error of another library."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error, cut at 300 characters; the name of its type if it has no text."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip()[:300]


def counted(number: int, what: str) -> str:
    """Return a number of things, `1 image` or `2 images`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def first_names(names: Sequence[str], most: int = 20) -> str:
    """Return names with commas, the first ones of a long list and the number of the others."""
    left = len(names) - most
    return ", ".join(names) if left < 2 else f"{', '.join(names[:most])} and {left} more"


def one_line(text: object) -> str:
    """Return the :func:`harmless` text of a message or error on one line."""
    return " ".join(harmless(str(text)).split())


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


class InputError(SeamsegError):
    """Bad usage or bad input: a wrong argument, a missing or broken file, a config with a typo, a missing package."""

    exit_code = 2


class OutOfMemory(SeamsegError):
    """The memory of a device, or of the computer, does not suffice."""


class Terminated(KeyboardInterrupt):
    """The process has received SIGTERM."""

    exit_code = 143


class HungUp(Terminated):
    """The process has received SIGHUP: its terminal was closed."""

    exit_code = 129


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message on an unknown name, "; did you mean 'car'?"; empty if no known name is similar."""
    match = near_names(name, known)
    return f"; did you mean {match[0]!r}?" if match else ""


def near_names(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the most similar known names, see `difflib.get_close_matches`; none if the search would take long."""
    names = list(known)
    if len(names) > _MOST_NAMES:
        return []
    return difflib.get_close_matches(name, names, count, cutoff)


EXTRAS = {
    **dict.fromkeys(("torch", "torchvision", "tensorboard"), "torch"),
    **dict.fromkeys(("onnx", "onnxscript"), "export"),
    **dict.fromkeys(("starlette", "uvicorn", "python_multipart", "prometheus_client"), "serve"),
    **dict.fromkeys(("huggingface_hub", "safetensors"), "hub"),
    "onnxruntime": "onnx",
    "openvino": "openvino",
    "timm": "timm",
    "transformers": "transformers",
    "av": "video",
    "cityscapesscripts": "cityscapes",
    "ray": "ray",
    "supervision": "supervision",
}
"""Extra that installs a package, by the name under which it is imported."""


def require_packages(*packages: str, what: str = "", extra: str | None = None) -> None:
    """Raise InputError if packages, by import name, are not installed; they are not imported, which takes seconds.

    `what` needs them, for the message. `extra` installs all of them; None: the extras of :data:`EXTRAS`.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise missing_packages(missing, what, extra)


def require_module(name: str, what: str) -> Any:
    """Import a module of a package; InputError, as of :func:`require_packages`, also if it cannot be loaded."""
    package = name.partition(".")[0]
    require_packages(package, what=what)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = f"pip install -U 'seamseg[{EXTRAS[package]}]'"
        raise InputError(f"{what}: {package} is installed, but cannot be loaded ({error}); {how}") from None


def missing_packages(packages: Iterable[str], what: str = "", extra: str | None = None) -> InputError:
    """Return the error for packages that are not installed; arguments as of :func:`require_packages`."""
    names = list(packages)
    extras = dict.fromkeys(EXTRAS[name] for name in names if name in EXTRAS) if extra is None else [extra]
    how = f"pip install 'seamseg[{','.join(extras)}]'" if extras else "`seamseg doctor` lists what is missing"
    whose = f"{what}: " if what else ""
    are = "are" if len(names) > 1 else "is"
    return InputError(f"{whose}needs {', '.join(names)}, which {are} not installed; {how}")


class UnreadableImage(InputError):
    """A file is missing, damaged, too large or not an image."""


# --- Errors of the code of components, which name it


@contextmanager
def named_errors(what: str, module: str, kind: type[SeamsegError] = SeamsegError) -> Iterator[None]:
    """Name a component (`what`, such as `head edge`) and the line of its module's file in errors of a `with` block.

    Any exception but a lack of memory becomes a `kind`.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SeamsegError) or lacks_memory(error):
            raise
        raise kind(f"{what}{described(error, file_of(module))}") from error


def file_of(module: str) -> str | None:
    """Return the file of an imported module."""
    return getattr(sys.modules.get(module), "__file__", None)


def described(error: BaseException, file: str | None) -> str:
    """Return the end of a message: a file, the line of it where an exception left it, its type and its message."""
    where, message = "" if file is None else f", {file}", str(error)
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            where = f", {file} line {line}"
    if isinstance(error, SyntaxError) and error.filename == file:
        where, message = f", {file} line {error.lineno}", error.msg
    return f"{where}: {one_line(f'{type(error).__name__}: {message}').rstrip(': ')}"


def instance_of(base: type[Base], made: Any, where: str, name: str = "") -> Base:
    """Return the object `made` by a component; InputError, which begins with `where`, unless it is a `base`.

    `name` is the name of `base` in :mod:`seamseg.components`, if it is another one there.
    """
    if not isinstance(made, base):
        raise InputError(f"{where}: must be a class derived from seamseg.components.{name or base.__name__}")
    return made


# --- Out-of-memory errors of a device


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error means that a device or the computer is out of memory.

    Only Python, numpy and torch's allocator of the GPU raise errors of their own types. cuDNN, Triton, oneDNN, torch's
    allocator of the CPU and others raise a RuntimeError, ONNX Runtime types that derive from Exception.
    """
    torch = sys.modules.get("torch")
    if isinstance(error, (MemoryError, OutOfMemory)) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    of_engine = type(error).__module__.startswith("onnxruntime")
    return (of_engine or isinstance(error, (RuntimeError, OSError))) and _OUT_OF_MEMORY.search(str(error)) is not None


def free_memory() -> None:
    """Collect garbage and release the cached memory of the GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
