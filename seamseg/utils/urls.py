"""Inputs and outputs at URLs (s3://, gs://, https://, memory:// and others) through fsspec, if it is installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, Any

from seamseg.utils.errors import InputError, UnreadableImage
from seamseg.utils.limits import PHOTO_BYTES, read_limited

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "https", "http", "memory", "file")
"""Schemes that are opened: others of fsspec run templates, unpack archives, reach other machines, or chain (`::`)."""
_MOST_NUMBERS = 1_000_000
_MAGIC = re.compile(r"[*\[]")


def is_url(text: str) -> bool:
    """Return whether a text is a URL rather than a path."""
    return _URL.match(text) is not None


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it.

    Raises
    ------
    InputError
        if fsspec or the library of the scheme is not installed, or the scheme is not one of :data:`SCHEMES`
    """
    if "::" in url or url.partition("://")[0].lower() not in SCHEMES:
        raise InputError(f"{url}: this kind of URL is not opened; supported are {', '.join(SCHEMES)}, without `::`")
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{url}: needs fsspec ({error}): pip install 'seamseg[urls]'") from None
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(f"{url}: fsspec needs another library for this scheme: {error}") from None
    except ValueError as error:
        raise InputError(f"{url}: fsspec cannot read this URL: {error}") from None
    except Exception as error:  # credentials or the network: each library has its own errors
        raise InputError(f"{url}: cannot be reached: {describe_error(error)}") from error


def find_urls(url: str, endings: Sequence[str]) -> tuple[str, list[str]]:
    """List the files of a URL of a file, folder, glob (`*`, `**`, `[...]`) or number range (`{000..010}`), sorted.

    Parameters
    ----------
    url : URL given by the user
    endings : file name endings that a folder is searched for

    Returns
    -------
    root, urls : URL of the folder that contains the files, and URL of each file

    Raises
    ------
    InputError
        if nothing is found or the URL cannot be read
    """
    numbered = expand_numbers(url)
    if len(numbered) > 1:
        return url.partition("{")[0].rpartition("/")[0], numbered
    system, path = file_system(url)
    try:
        if url.startswith(("http://", "https://")) and (not _MAGIC.search(url)):
            return url.rpartition("/")[0], [url]
        if _MAGIC.search(url):
            found = system.glob(path)
            root = url[: _MAGIC.search(url).start()].rpartition("/")[0]  # type: ignore[union-attr]
            what = "match this pattern"
        elif system.isfile(path):
            return url.rpartition("/")[0], [url]
        else:
            found = [p for p in system.find(path) if p.lower().endswith(tuple(endings)) and not _hidden(p, path)]
            if not found and not system.exists(path):
                raise FileNotFoundError
            root, what = url.rstrip("/"), f"found in this folder; looked for {', '.join(endings)}"
    except Exception as error:
        raise InputError(f"{url}: cannot be listed: {describe_error(error)}") from error
    if not found:
        raise InputError(f"{url}: 0 images {what}")
    return root, [system.unstrip_protocol(p) for p in sorted(found)]


def expand_numbers(text: str) -> list[str]:
    """Expand `a{08..10}b` to `a08b`, `a09b`, `a10b`; return other texts unchanged."""
    head, brace, rest = text.partition("{")
    inside, end, tail = rest.partition("}")
    first, dots, last = inside.partition("..")
    if not (brace and end and dots and first.isdecimal() and last.isdecimal()):
        return [text]
    if max(len(first), len(last)) > 9 or int(last) - int(first) >= _MOST_NUMBERS:
        raise InputError(f"{text}: more than {_MOST_NUMBERS} files")
    return [
        f"{head}{number:0{len(first)}}{after}"
        for number in range(int(first), int(last) + 1)
        for after in expand_numbers(tail)
    ]


def relative_names(urls: Sequence[str], root: str) -> list[str]:
    """Return the paths of URLs relative to the URL `root`, without queries; if it is empty they start with the host."""
    start = [part for part in root.partition("://")[2].split("/") if part]
    names = []
    for url in urls:
        scheme, _, rest = url.partition("://")
        if scheme in ("http", "https"):
            rest = rest.partition("?")[0].partition("#")[0]
        parts = [part for part in rest.split("/") if part not in ("", ".", "..")]
        names.append("/".join(parts[len(start) :] if parts[: len(start)] == start else parts))
    return names


def open_url(url: str) -> IO[bytes]:
    """Open a file for reading; raise UnreadableImage if that fails."""
    system, path = file_system(url)
    try:
        return system.open(path, "rb")
    except Exception as error:
        raise UnreadableImage(f"{url}: cannot be read: {describe_error(error)}") from error


def read_url(url: str) -> bytes:
    """Read a file; raise UnreadableImage if that fails."""
    try:
        with open_url(url) as file:
            return read_limited(file, PHOTO_BYTES, url, "image")
    except UnreadableImage:
        raise
    except InputError as error:
        raise UnreadableImage(str(error)) from error
    except Exception as error:
        raise UnreadableImage(f"{url}: cannot be read: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return a short one-line description of an error of another library."""
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path[len(root) :].split("/"))
