"""Upload of trained models with a model card."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from support.classes import write_classifier
from support.fake_hub import FakeHub, Repo, fake_hub
from support.micro import narrow_body
from support.small_models import CLASSES, write_run

from seamseg.checkpoints.bundle import open_model
from seamseg.contrib.deploy.model_card import push_model
from seamseg.contrib.deploy.options import CardOptions, ConversionOptions
from seamseg.utils.errors import InputError, SeamsegError

__all__ = ["fake_hub"]
NAME = "someone/street"
FILES = {"model.safetensors", "config.ini", "metadata.json", "README.md"}
PANOPTIC = {
    "PQ": 0.61234, "SQ": 0.8, "RQ": 0.7, "PQ_things": 0.5, "PQ_stuff": None, "mIoU": 0.75, "n_images": 3,
    "per_class": {name: {} for name in CLASSES.categories},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a panoptic network; do not write to it."""
    return write_run(tmp_path_factory.mktemp("models") / "run")


def push(
    model: Path, repo: str = NAME, licence: str = "", scores: Any = None, force: bool = True, **options: Any
) -> str | None:
    card = CardOptions(["cityscapes"] if scores is not None else (), scores)
    with narrow_body():
        return push_model(model, repo, ConversionOptions(licence, force=force), card, **options)


def card_of(folder: Path, model: Path, **options: Any) -> ModelCard:
    push(model, folder=folder, **options)
    return ModelCard((folder / "README.md").read_text())


def write_scores(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# --- upload


def test_what_is_uploaded_is_what_is_loaded(fake_hub: FakeHub, run: Path) -> None:
    uri = push(run, licence="cc-by-4.0", private=True)
    repo = fake_hub.repos[NAME]
    assert repo.private
    assert uri == f"hf://{NAME}@{repo.revisions['main']}"
    assert set(repo.commits[repo.revisions["main"]]) == {*FILES, ".gitattributes"}
    assert len(repo.commits) == 2, "the files come in one commit"
    with narrow_body():
        model = open_model(uri)
    assert (model.metadata, model.licence) == (CLASSES, "cc-by-4.0")


def test_uploads_that_are_refused(fake_hub: FakeHub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A licence that the hub does not know, a public repository for a private model, no permission, no network."""
    with pytest.raises(InputError, match=r'Invalid metadata in README\.md\. - "license" must be one of') as error:
        push(run, licence="cc-by-40")
    assert "\n" not in str(error.value)
    fake_hub.repos[NAME] = Repo(private=False)
    before = fake_hub.repos[NAME].commit({"a": b"b"})
    with pytest.raises(InputError, match="exists and is public, nothing was uploaded"):
        push(run, private=True)
    assert fake_hub.repos[NAME].find("main") == before
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(InputError, match="access is restricted: log in with `hf auth login` or set HF_TOKEN") as error:
        push(run, "someone/else")
    assert "\n" not in str(error.value)
    assert "someone/else" not in fake_hub.repos
    assert not [line for line in fake_hub.requests if "/commit/" in line]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SeamsegError, match=f"hf://{NAME}: ConnectError: "):
        push(run)


@pytest.mark.parametrize("name", ["street", "a/b/c", "hf://a/b"])
def test_names_of_repositories(run: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the name of a repository: give user/repo"):
        push(run, name, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the card


def test_the_card(run: Path, tmp_path: Path) -> None:
    scores = write_scores(tmp_path / "scores.json", PANOPTIC)
    card = card_of(tmp_path / "out", run, licence="cc-by-4.0", scores=scores)
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    data = card.data.to_dict()
    metrics = [(m["type"], m["name"], m["value"]) for m in data.pop("model-index")[0]["results"][0]["metrics"]]
    assert metrics == [
        ("pq", "PQ", 61.23),
        ("pq_things", "PQ, things", 50.0),
        ("sq", "SQ", 80.0),
        ("rq", "RQ", 70.0),
        ("mean_iou", "mIoU", 75.0),
    ]
    assert data == {
        "library_name": "seamseg",
        "pipeline_tag": "image-segmentation",
        "tags": ["panoptic-segmentation", "resnet18", "safetensors"],
        "datasets": ["cityscapes"],
        "license": "cc-by-4.0",
    }
    named = write_scores(tmp_path / "named.json", PANOPTIC | {"mIoU_segments": 0.5})
    results = card_of(tmp_path / "out", run, scores=named).data.eval_results[-2:]
    ious = [(m.metric_name, m.metric_value) for m in results]
    assert ious == [("mIoU (class map)", 75.0), ("mIoU (segments)", 50.0)]
    assert "| PQ | 61.23 |" in card.text
    assert '\nmodel = seamseg.load("hf://someone/street")\n' in card.text
    assert "\npip install '.[torch,hub]'\nseamseg predict hf://someone/street photos/ out/\n" in card.text
    assert "| 1 | road\\|street | stuff | #804080 |" in card.text
    assert "| 2 | car | thing | #00008e |" in card.text


@pytest.mark.parametrize(
    ("licence", "stated"),
    [
        ("CC BY-NC-SA 4.0", {"license": "cc-by-nc-sa-4.0"}),
        ("Ask us: a@b.c", {"license": "other", "license_name": "Ask us: a@b.c"}),
        ("", {}),
    ],
)
def test_licences(run: Path, tmp_path: Path, licence: str, stated: dict[str, str]) -> None:
    card = card_of(tmp_path / "out", run, licence=licence)
    assert {key: value for key, value in card.data.to_dict().items() if key.startswith("license")} == stated
    assert "model-index" not in card.data.to_dict()
    assert (licence or "No licence of the weights is stated.") in card.text


@pytest.mark.parametrize(
    ("kind", "content", "pipeline", "first"),
    [
        ("instance_seg", {"box": {"AP": 0.5}, "mask": {"AP": 0.25}}, "image-segmentation", ("mask AP", 25.0)),
        ("detection", {"box": {"AP": 0.5, "AP50": 0.75}}, "object-detection", ("box AP", 50.0)),
        ("semantic", {"mIoU": 0.5, "accuracy": 0.875}, "image-segmentation", ("mIoU", 50.0)),
        ("classification", {"top1": 76.5, "top5": 93.25}, "image-classification", ("top-1 accuracy", 76.5)),
    ],
)
def test_other_kinds(kind: str, content: Any, pipeline: str, first: tuple[str, float], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = write_classifier(folder) if kind == "classification" else write_run(folder, kind)
    card = card_of(tmp_path / "out", model, scores=write_scores(tmp_path / "s.json", content))
    assert card.data.pipeline_tag == pipeline
    metric = card.data.eval_results[0]
    assert (metric.metric_name, metric.metric_value) == first
    assert "thing" not in card.text if kind == "classification" else "| thing |" in card.text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not JSON, or a truncated one"),
        ("[]", "no PQ: not the scores of a network of kind panoptic"),
        ({"PQ": None}, "no PQ: not the scores"),
        ({"mIoU": 0.5}, "has mIoU, no PQ: not the scores"),
        ({"PQ": 0.5, "per_class": {"car": {}}}, "scores of 1 classes, the model has 3"),
    ],
)
def test_wrong_scores(run: Path, tmp_path: Path, content: Any, expected: str) -> None:
    path = write_scores(tmp_path / "s.json", content)
    with pytest.raises(InputError) as error:
        push(run, folder=tmp_path / "out", scores=path)
    assert str(error.value).startswith(f"{path}: {expected}")
    assert [*(tmp_path / "out").iterdir()] == []


def test_the_command(
    fake_hub: FakeHub, run: Path, tmp_path: Path, seamseg_main: Callable[..., int], capsys: Any
) -> None:
    scores = write_scores(tmp_path / "s.json", PANOPTIC)
    words = ("push", run, NAME, "--licence", "mit")
    with narrow_body():
        assert seamseg_main(*words, "--dry-run", tmp_path / "out") == 0
        printed = capsys.readouterr().out
        assert fake_hub.requests == []
        assert printed.splitlines() == [str(tmp_path / "out" / name) for name in sorted(FILES)]
        assert seamseg_main(*words, "--dataset", "cityscapes", "--dataset", "toy", "--scores", scores) == 0
    commit = fake_hub.repos[NAME].find("main")
    assert capsys.readouterr().out == f"hf://{NAME}@{commit}\n"
    card = ModelCard(fake_hub.repos[NAME].commits[commit]["README.md"].decode())
    assert card.data.datasets == ["cityscapes", "toy"]
    assert seamseg_main("push", run, NAME, "--scores", scores) == 2
    assert capsys.readouterr().err == (f"seamseg push: --scores {scores}: name the data set with --dataset NAME\n")
