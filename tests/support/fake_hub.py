"""The Hugging Face Hub: downloads by its HTTP interface, in a thread of the test, and uploads by calls."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_test"


@dataclass
class Repo:
    """Files by commit, the newest last; branches and tags by name."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        before = self.commits.get(self.revisions.get(branch, ""), {})
        content = {**before, **files}
        digest = hashlib.sha1(repr((len(self.commits), sorted(content.items()))).encode()).hexdigest()
        self.commits[digest], self.revisions[branch] = content, digest
        return digest

    def find(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.revisions.get(revision)


@dataclass
class FakeHub:
    """Repositories by name, and the requests so far as `METHOD path`."""

    endpoint: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failure: int = 0

    def publish(self, name: str, folder: Path) -> str:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        return self.repos.setdefault(name, Repo()).commit(files)

    def upload(self, repo_id: str, folder_path: Path, commit_message: str) -> Any:
        return SimpleNamespace(oid=self.publish(repo_id, folder_path))

    def create(self, name: str, private: bool | None, exist_ok: bool) -> None:
        if name not in self.repos:
            self.repos[name] = Repo(bool(private))
            self.repos[name].commit({".gitattributes": b""})

    def fetched(self) -> set[str]:
        return {line.rpartition("/")[2] for line in self.requests if re.match(r"GET /.+/resolve/", line)}


class _Refusal(Exception):
    """Status, error code of the hub, and message."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def reply(self, code: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(code)
        for name, value in (headers | {"Content_Type": kind, "Content_Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        try:
            if self.hub.failure:
                raise _Refusal(self.hub.failure, "", "the hub is being repaired")
            for pattern, answer in _ROUTES:
                if match := re.fullmatch(pattern, path):
                    content = answer(self, *match.groups())
                    break
            else:
                raise _Refusal(404, "NotFound", "")
        except _Refusal as refusal:
            code, name, text = refusal.args
            error = json.dumps({"error": text or name}).encode()
            self.reply(code, error, X_Error_Code=name, X_Error_Message=text or name)
        else:
            if content is not None:
                self.reply(200, json.dumps(content).encode())

    do_GET = do_HEAD = answer

    def found(self, name: str, revision: str = "main") -> tuple[Repo, str]:
        repo, permitted = self.hub.repos.get(name), self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo is None or (repo.private and not permitted):
            raise _Refusal(404 if permitted else 401, "RepoNotFound", "Repository not found")
        commit = repo.find(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, commit

    def info(self, name: str, revision: str | None) -> Any:
        repo, commit = self.found(name, revision or "main")
        names = [{"rfilename": file} for file in repo.commits[commit]]
        return {"id": name, "modelId": name, "sha": commit, "private": repo.private, "siblings": names}

    def tree(self, name: str, revision: str) -> Any:
        repo, commit = self.found(name, revision)
        files = repo.commits[commit].items()
        return [{"type": "file", "path": path, "size": len(data), "oid": _oid(data)} for path, data in files]

    def resolve(self, name: str, revision: str, file: str) -> None:
        repo, commit = self.found(name, revision)
        data = repo.commits[commit].get(file)
        if data is None:
            return self.reply(404, b"{}", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        return self.reply(200, data, "text/plain", ETag=f'"{_oid(data)}"', X_Repo_Commit=commit)


def _oid(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


_REPO = r"([\w.-]+/[\w.-]+)"
_ROUTES: list[tuple[str, Any]] = [
    (rf"/api/models/{_REPO}(?:/revision/(.+))?", _Handler.info),
    (rf"/api/models/{_REPO}/tree/([^/]+|refs/pr/\d+)/?", _Handler.tree),
    (rf"/{_REPO}/resolve/([^/]+|refs/pr/\d+)/(.+)", _Handler.resolve),
]


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub on a free port of this machine, with an empty cache in `tmp_path / "cache"`, without xet."""
    from huggingface_hub import HfApi, constants

    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(HfApi, "create_repo", lambda _, *names, **options: hub.create(*names, **options))
    monkeypatch.setattr(HfApi, "upload_folder", lambda _, **options: hub.upload(**options))
    yield hub
    server.shutdown()
    server.server_close()
