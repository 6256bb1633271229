"""Models on the Hugging Face Hub: download of `hf://user/repo` to the cache of huggingface_hub, upload of a folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from seamseg.utils.errors import InputError, SeamsegError, describe_error, one_line, require_module
from seamseg.utils.files import join_inside
from seamseg.utils.output import console
from seamseg.version import __version__

SCHEME = "hf://"
"""Start of the name of a model of the hub."""
REPO_NAME = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_URI = re.compile(rf"hf://({REPO_NAME})(?:@(refs/pr/\d+|refs/convert/[^/]+|[^/]+))?(?:/([^*?\[]+))?")
_LIBRARY = {"library_name": "seamseg", "library_version": __version__}


def check_repo(repo: str) -> None:
    """Raise InputError if the name of a repository is not `user/repo`."""
    if not re.fullmatch(REPO_NAME, repo):
        raise InputError(f"{repo}: not the name of a repository: give user/repo")


def fetch(
    uri: str, files: Sequence[str], further: Callable[[Path], Iterable[Sequence[str]]] = lambda folder: ()
) -> Path:
    """Download `hf://user/repo[@REVISION][/FILE]`, or find it in the cache; return its folder there, or FILE.

    Without FILE, or if FILE is the first of them, `files` are downloaded, as far as the repository holds them; it must
    hold the first, unless `further`, called with the folder, yields patterns of more files. Each list of patterns is
    downloaded before the next is requested.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise InputError(f"{uri}: malformed: write hf://user/repo, hf://user/repo@revision or hf://user/repo/FILE")
    repo, revision, file = match.groups()
    if file is not None:
        try:
            join_inside(Path(repo), file)
        except InputError:
            raise InputError(f"{uri}: malformed: {file} is not inside the repository") from None
    if file is not None and file.lower().endswith(".pt2"):
        raise InputError(f"{uri}: not downloaded: a .pt2 package is a program; check and copy it yourself")
    with quiet_hub(uri) as hub:
        wanted = list(files) if file in (None, files[0]) else [file]
        revision = None if revision is None else unquote(revision)
        folder = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=wanted, **_LIBRARY))
        complete = False
        for patterns in further(folder) if file is None else ():
            # the commit of the first files: a branch may move
            hub.snapshot_download(repo, revision=folder.name, allow_patterns=list(patterns), **_LIBRARY)
            complete = True
        offline = hub.constants.HF_HUB_OFFLINE
    if not complete and not (folder / wanted[0]).is_file():
        where = " in the cache, and HF_HUB_OFFLINE is set" if offline else ""
        how = "" if file is not None else "; upload a model with `seamseg push`, or name a file: hf://user/repo/FILE"
        raise InputError(f"{uri}: holds no {wanted[0]}{where}{how}")
    return folder if file is None else folder / file


def upload(folder: Path, repo: str, private: bool = False) -> str:
    """Upload the files of a folder as one commit to `user/repo`, which is created if needed.

    Return `hf://user/repo@COMMIT`. With `private`, an existing public repository is an InputError.
    """
    with quiet_hub(f"{SCHEME}{repo}") as hub:
        api = hub.HfApi(**_LIBRARY)
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise InputError(f"{SCHEME}{repo}: exists and is public, nothing was uploaded; make it private there")
        words = f"Upload with seamseg {__version__}"
        done = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=words)
    return f"{SCHEME}{repo}@{done.oid}"


@contextmanager
def quiet_hub(uri: str) -> Iterator[Any]:
    """Yield the module huggingface_hub; its errors become one line, and its progress shows on a terminal only."""
    hub = require_module("huggingface_hub", uri)
    for part in ("constants", "errors", "utils"):
        require_module(f"huggingface_hub.{part}", uri)
    silence = (console.quiet or not sys.stderr.isatty()) and not hub.utils.are_progress_bars_disabled()
    verbosity = hub.utils.logging.get_verbosity()
    try:
        # its warnings repeat what the errors state
        hub.utils.logging.set_verbosity_error()
        if silence:
            hub.utils.disable_progress_bars()
        yield hub
    except SeamsegError:
        raise
    except Exception as error:  # httpx or httpx2, the file system and the parsers have their own errors
        raise _problem(uri, error, hub.errors) from None
    finally:
        hub.utils.logging.set_verbosity(verbosity)
        if silence:
            hub.utils.enable_progress_bars()


def _problem(uri: str, error: Exception, errors: Any) -> SeamsegError:
    """Return the error to raise for one of huggingface_hub."""
    cause = error.__cause__ or error if isinstance(error, errors.LocalEntryNotFoundError) else error
    response: Any = getattr(cause, "response", None)
    reason = describe_error(cause)
    if isinstance(cause, errors.HfHubHTTPError):
        reason = one_line(f"{response.status_code} {cause.server_message or response.reason_phrase}")[:200]
    if isinstance(error, errors.LocalEntryNotFoundError):
        offline = isinstance(cause, errors.OfflineModeIsEnabled)
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({reason})"
        match = _URI.fullmatch(uri)
        repo, revision = match.groups()[:2] if match else (uri, None)
        of_revision = "" if revision is None else f" --revision {unquote(revision)}"
        advice = f"download it elsewhere with `hf download {repo}{of_revision} --local-dir DIR` and name DIR"
        text = f"{uri}: not in the cache, or not completely, and {why}; {advice}"
        return InputError(text) if offline else SeamsegError(text)
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{uri}: the repository has no such revision")
    if isinstance(error, errors.RepositoryNotFoundError) or getattr(response, "status_code", 0) in (401, 403):
        login = "log in with `hf auth login` or set HF_TOKEN"
        return InputError(f"{uri}: no such repository, or access is restricted: {login} ({reason})")
    if isinstance(error, ValueError):  # an invalid name or model card
        return InputError(f"{uri}: {one_line(error)[:300]}")
    return SeamsegError(f"{uri}: {reason}")
