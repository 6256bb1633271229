"""Models on the Hugging Face Hub: what is downloaded, from where it is loaded, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.fake_hub import FakeHub, Repo, fake_hub
from support.micro import narrow_body
from support.small_models import CLASSES, config_of, write_run

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.hub import fetch
from seamseg.checkpoints.model_path import digest, local_model, weights_at
from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.contrib.deploy.model_folder import convert_model
from seamseg.contrib.deploy.options import ConversionOptions
from seamseg.models.build import build_network
from seamseg.utils.errors import InputError, SeamsegError

__all__ = ["fake_hub"]
FILES = {"model.safetensors", "config.ini", "metadata.json"}
NAME = "someone/street-1.0"
URI = f"hf://{NAME}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted panoptic model, with more files than are needed; do not write to it."""
    root = tmp_path_factory.mktemp("models")
    with narrow_body():
        convert_model(write_run(root / "run"), root / "out", ConversionOptions("mit"))
    (root / "out" / "README.md").write_text("# A card\n")
    (root / "out" / "pytorch_model.bin").write_bytes(b"a pickle" * 1000)
    return root / "out"


@pytest.fixture
def commit(fake_hub: FakeHub, folder: Path) -> str:
    """The commit of the model on the hub."""
    return fake_hub.publish(NAME, folder)


def refusal(uri: str, kind: type[SeamsegError] = InputError) -> str:
    with pytest.raises(SeamsegError) as error:
        open_model(uri)
    assert type(error.value) is kind
    message = str(error.value)
    assert message.startswith(f"{uri}: ")
    assert "\n" not in message
    return message.removeprefix(f"{uri}: ")


# --- what is downloaded


def test_only_the_needed_files(fake_hub: FakeHub, commit: str, folder: Path, tmp_path: Path) -> None:
    model = open_model(URI)
    assert fake_hub.fetched() == FILES
    place = tmp_path / "cache" / "models--someone--street-1.0" / "snapshots" / commit
    assert {path.name for path in place.iterdir()} == FILES
    assert model.name == str(place / "model.safetensors")
    assert (model.metadata, model.licence, model.config) == (CLASSES, "mit", config_of("panoptic"))
    assert digest(URI) == digest(folder)
    # once more: from the cache
    fake_hub.requests.clear()
    open_model(URI)
    assert fake_hub.fetched() == set()


def test_revisions(fake_hub: FakeHub, commit: str, tmp_path: Path) -> None:
    repo = fake_hub.repos[NAME]
    text = repo.commits[commit]["metadata.json"]
    repo.revisions["v1.0"] = commit
    second = repo.commit({"metadata.json": text.replace(b'"mit"', b'"cc-by-4.0"')})
    third = repo.commit({"metadata.json": text.replace(b'"mit"', b'"other"')}, "main")
    repo.revisions["refs/pr/2"] = repo.revisions["a/b"] = second
    found = {
        name: open_model(f"{URI}@{name}").licence for name in ("v1.0", second, "refs/pr/2", "a%2Fb", "main", third)
    }
    assert [*found.values()] == ["mit", "cc-by-4.0", "cc-by-4.0", "cc-by-4.0", "other", "other"]
    assert open_model(URI).licence == "other"
    # the weights are the same: downloaded once
    downloads = [line for line in fake_hub.requests if line.startswith("GET ") and line.endswith("/model.safetensors")]
    assert len(downloads) == 1


def test_one_file(fake_hub: FakeHub, commit: str, folder: Path) -> None:
    run = write_run(folder.parent / "other-run")
    data = {"snapshots/last.pth.tar": (run / "model_last.pth.tar").read_bytes(), "a.onnx": b"not a graph"}
    fake_hub.repos[NAME].commit(data)
    assert open_model(f"{URI}/snapshots/last.pth.tar").metadata == CLASSES
    assert open_model(f"{URI}@main/snapshots/last.pth.tar").metadata == CLASSES
    assert fake_hub.fetched() == {"last.pth.tar"}
    with pytest.raises(InputError, match=r"a\.onnx: not an ONNX file"):
        seamseg.load(f"{URI}/a.onnx", "cpu")


def test_python_and_pre_training(fake_hub: FakeHub, commit: str, folder: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((64, 96, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    with narrow_body():
        first, second = (seamseg.load(model, "cpu").predict(tmp_path / "photo.png") for model in (URI, folder))
        assert first == second
        net = build_network(config_of("panoptic"), 2, 1)
    for name in (URI, f"body:{URI}", f"body:{URI}/model.safetensors"):
        assert load_pretrained(net, name).skipped == []
    assert weights_at(URI).name == "model.safetensors"


# --- without a network


def test_offline(fake_hub: FakeHub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model(URI)
    fake_hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert open_model(URI).metadata == CLASSES
    assert open_model(f"{URI}@{commit}").metadata == CLASSES
    assert refusal("hf://someone/else") == (
        "not in the cache, or not completely, and HF_HUB_OFFLINE is set; download it elsewhere with `hf download "
        "--local-dir` and name its folder"
    )
    assert fake_hub.requests == []


def test_no_network_and_a_hub_that_fails(fake_hub: FakeHub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model(URI)
    fake_hub.failure = 500
    assert refusal("hf://someone/else", SeamsegError).count("(500 the hub is being repaired)") == 1
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert open_model(URI).metadata == CLASSES
    message = refusal("hf://someone/else", SeamsegError)
    assert message.startswith("not in the cache, or not completely, and the hub cannot be reached (ConnectError: ")


# --- something wrong


def test_missing_repository_revision_and_file(fake_hub: FakeHub, commit: str) -> None:
    log_in = "no such repository, or access is restricted: log in with `hf auth login` or set HF_TOKEN ("
    assert refusal("hf://someone/else").startswith(log_in)
    assert refusal(f"{URI}@v2") == "the repository has no such revision"
    assert refusal(f"{URI}/model.zip") == "holds no model.zip"
    with pytest.raises(InputError, match=r"holds no no\.txt"):
        fetch(URI, ["no.txt", "config.ini"])
    fake_hub.repos["someone/empty"] = Repo()
    fake_hub.repos["someone/empty"].commit({"README.md": b"# nothing"})
    how = "upload a model with `seamseg push`, or name a file: hf://user/repo/FILE"
    assert refusal("hf://someone/empty") == f"holds no model.safetensors; {how}"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        *((uri, "malformed: write hf://user/repo, ") for uri in ("hf://", "hf://name", "hf://a/b@", "hf://a/b/*.tar")),
        (f"{URI}/a.PT2", "not downloaded: a .pt2 package is a program"),
        (f"{URI}/../../a.tar", "malformed: ../../a.tar is not inside"),
    ],
)
def test_malformed_names_and_files_that_are_not_downloaded(fake_hub: FakeHub, uri: str, expected: str) -> None:
    assert refusal(uri).startswith(expected)
    assert fake_hub.requests == []


def test_the_name_of_a_repository_is_no_path() -> None:
    """As users know it from transformers."""
    for name in ("https://huggingface.co/a/b", "hf:a/b", "a/b"):
        with pytest.raises(InputError, match=f"^{name}: no such model; did you mean hf://a/b"):
            local_model(name)
