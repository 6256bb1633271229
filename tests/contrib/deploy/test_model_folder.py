"""Trained models as folders without pickles, with a model card, and on the Hugging Face Hub."""

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from support.classes import write_classifier
from support.fake_hub import Repo, fake_hub
from support.micro import narrow_body
from support.small_models import CLASSES, config_of, write_run

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.hub import fetch
from seamseg.checkpoints.model_path import digest, local_model, weights_at
from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.config import config_to_string
from seamseg.contrib.deploy.model_card import push_model
from seamseg.contrib.deploy.model_folder import convert_model
from seamseg.contrib.deploy.options import CardOptions, ConversionOptions
from seamseg.models.build import build_network
from seamseg.utils.errors import InputError, SeamsegError

__all__ = ["fake_hub"]
pytestmark = pytest.mark.usefixtures("narrow")
FILES = {"model.safetensors", "config.ini", "metadata.json"}
NAME = "someone/street-1.0"
URI = f"hf://{NAME}"
PANOPTIC = {
    "PQ": 0.61234, "SQ": 0.8, "RQ": 0.7, "PQ_things": 0.5, "PQ_stuff": None, "mIoU": 0.75, "n_images": 3,
    "per_class": {name: {} for name in CLASSES.categories},
}  # fmt: skip


def convert(model, out, **options):
    with narrow_body():
        return convert_model(model, out, ConversionOptions(**options))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("models") / "run")


@pytest.fixture(scope="module")
def folder(run):
    convert(run, run.parent / "converted", licence="cc-by-4.0")
    return run.parent / "converted"


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def commit(fake_hub, copy):
    """The commit of the model on the hub, with more files than are needed."""
    (copy / "README.md").write_text("# A card\n")
    (copy / "pytorch_model.bin").write_bytes(b"a pickle" * 1000)
    return fake_hub.publish(NAME, copy)


def refusal(model, kind=InputError):
    with pytest.raises(SeamsegError) as error:
        open_model(model)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix(f"{model}: ")


def assert_same_weights(model, folder):
    first, second = (open_model(path).snapshot for path in (model, folder))
    wanted, found = first.state_dict | first.state_dict.get("ema", {}), second.state_dict
    assert set(found) == {part for part in wanted if part in found} != set()
    for part, tensors in found.items():
        assert set(tensors) == set(wanted[part])
        for key, value in tensors.items():
            assert value.dtype == wanted[part][key].dtype
            assert torch.equal(value, wanted[part][key]), f"{part}.{key}"


# --- what a folder holds


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_every_kind_keeps_its_weights_and_results(kind, tmp_path, micro):
    model = write_run(tmp_path / "run", kind)
    made = convert(model, tmp_path / "out", licence="mit")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert made.kind == kind
    assert made.num_parameters == sum(p.numel() for p in build_network(config_of(kind), 2, 1).parameters())
    assert_same_weights(model, tmp_path / "out")
    first, second = (seamseg.load(path, "cpu").predict(micro / "img/val0.png") for path in (model, tmp_path / "out"))
    assert first == second


def test_the_files(run, folder, tmp_path):
    with safe_open(folder / "model.safetensors", "np") as file:
        assert {name.partition(".")[0] for name in file.keys()} == {"body", "rpn_head", "roi_head", "sem_head"}  # noqa: SIM118
        assert file.metadata() == {"format": "pt"}
    assert json.loads((folder / "metadata.json").read_text()) == {
        "format": 1,
        "version": seamseg.__version__,
        "kind": "panoptic",
        "licence": "cc-by-4.0",
        "num_stuff": 2,
        "num_thing": 1,
        "categories": CLASSES.categories,
        "palette": [list(rgb) for rgb in CLASSES.palette],
        "original_ids": CLASSES.original_ids,
    }
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "all are readable by whom the umask says"
    assert (folder / "config.ini").read_text() == config_to_string(config_of("panoptic"))
    assert (open_model(folder).metadata, open_model(folder).licence) == (CLASSES, "cc-by-4.0")
    # a converted folder is a model, too
    assert convert(folder, tmp_path / "again").licence == "cc-by-4.0"
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    # weights and metadata alone
    assert_same_weights(run, folder / "model.safetensors")
    assert open_model(run / "model_last.pth.tar", meta=folder / "metadata.json").metadata == CLASSES
    shutil.copy(folder / "model.safetensors", tmp_path / "w.safetensors")
    assert open_model(tmp_path / "w.safetensors", folder / "config.ini", folder / "metadata.json").metadata == CLASSES


def test_the_moving_average_is_what_is_shared(tmp_path):
    model = write_run(tmp_path / "run", average=True)
    convert(model, tmp_path / "out")
    assert_same_weights(model, tmp_path / "out")
    name = "roi_cls.weight"
    plain = open_model(model).snapshot.state_dict["roi_head"][name]
    assert torch.equal(open_model(tmp_path / "out").snapshot.state_dict["roi_head"][name], 2 * plain)


def test_a_detector_of_a_panoptic_model_has_its_parts_only(run, tmp_path):
    paths = ["body.weights=/home/me/resnet.pth", "dataloader.coco_gt=/home/me/a"]
    assert convert(run, tmp_path / "out", overrides=["general.kind=detection", *paths]).kind == "detection"
    assert "/home/me" not in (tmp_path / "out" / "config.ini").read_text()
    state = open_model(tmp_path / "out").snapshot.state_dict
    assert set(state) == {"body", "rpn_head", "roi_head"}
    assert not [key for key in state["roi_head"] if "msk" in key]


def test_classifier(tmp_path):
    run = write_classifier(tmp_path / "run")
    made = convert(run, tmp_path / "out", licence="mit")
    files = {"model.safetensors", "config.json", "classes.json", "metadata.json"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == files
    assert (made.kind, made.metadata.categories) == ("classification", ["class 0", "class 1", "class 2"])
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    first = seamseg.classifier(run / "config.json", run / "model_best.pth.tar", "cpu")(image)
    for arguments in ((tmp_path / "out",), (run,), (tmp_path / "out" / "config.json", tmp_path / "out")):
        assert torch.equal(seamseg.classifier(*arguments, device="cpu")(image), first)
    assert convert(tmp_path / "out" / "model.safetensors", tmp_path / "again").metadata == made.metadata
    assert convert(tmp_path / "out", tmp_path / "again", force=True).licence == "mit"


# --- something wrong


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.safetensors", b"", "model.safetensors: truncated, damaged, or not a safetensors file ("),
        ("metadata.json", b"{", "metadata.json: not JSON, or a truncated one"),
        ("metadata.json", b'{"format": 2}', "metadata.json: has format 2, this version reads 1 of `seamseg convert-m"),
        ("model.safetensors", {"conv1.weight": torch.zeros(2)}, "not the weights of a network of "),
        ("model.safetensors", {"body.conv1.weight": torch.zeros(2)}, "has no rpn_head, roi_head: "),
        ("metadata.json", None, "holds no classes; give metadata.bin with `meta=FILE`"),
        ("config.ini", None, "holds no configuration"),
        ("model.safetensors", None, "nor model.safetensors"),
    ],
)
def test_damaged_and_lacking_files_and_other_weights(copy, name, content, expected):
    (copy / name).unlink()
    if content is not None:
        save_file(content, copy / name) if isinstance(content, dict) else (copy / name).write_bytes(content)
    assert expected in refusal(copy)


def test_folders_that_are_not_overwritten(run, folder, tmp_path, monkeypatch):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    for target, force, expected in (
        (run, True, r"holds other files \(model_last.pth.tar\): choose a new folder"),
        (tmp_path / "notes", True, r"holds other files \(a.txt\)"),
        (folder, False, "exists; use `force=True` to overwrite it"),
        (tmp_path / "notes" / "a.txt", False, "is a file, the output is a folder"),
    ):
        with pytest.raises(InputError, match=expected):
            convert(run, target, force=force)
    convert(run, tmp_path / "out")
    convert(run, tmp_path / "out", licence="mit", force=True)
    assert open_model(tmp_path / "out").licence == "mit"
    full = Mock(side_effect=OSError(28, "No space left"))
    monkeypatch.setattr("seamseg.contrib.deploy.model_folder.write_json", full)
    with pytest.raises(SeamsegError, match="No space left"):
        convert(run, tmp_path / "full")
    assert [*(tmp_path / "full").iterdir()] == []


def test_networks_of_other_libraries_and_exported_ones_are_not_converted(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is an exported network: give the model that it was exported from"):
        convert(tmp_path / "a.onnx", tmp_path / "out")
    model = "torchvision:maskrcnn_resnet50_fpn"
    with pytest.raises(InputError, match=f"^{model}: is no network of seamseg: share it as it is, with its own model"):
        push_model(model, "a/b", folder=tmp_path / "card")


def test_without_safetensors(folder, run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    assert refusal(folder).endswith("pip install 'seamseg[hub]'")
    with pytest.raises(InputError, match=r"^a/b: needs safetensors, which is not installed; "):
        push_model(run, "a/b", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # other models need no package
    assert open_model(run).metadata == CLASSES


def test_the_command(run, tmp_path, seamseg_main, capsys):
    assert seamseg_main("convert-model", run, tmp_path / "out", "--licence", "mit") == 0
    assert "panoptic, 3 classes" in capsys.readouterr().out
    assert seamseg_main("convert-model", run, tmp_path / "out") == 2
    error = f"seamseg convert-model: {tmp_path / 'out'}: exists; use --force to overwrite it\n"
    assert capsys.readouterr().err == error


# --- download


def test_only_the_needed_files(fake_hub, commit, copy, tmp_path):
    model = open_model(URI)
    assert fake_hub.fetched() == FILES
    place = tmp_path / "cache" / "models--someone--street-1.0" / "snapshots" / commit
    assert {path.name for path in place.iterdir()} == FILES
    assert model.name == str(place / "model.safetensors")
    assert (model.metadata, model.licence, model.config) == (CLASSES, "cc-by-4.0", config_of("panoptic"))
    assert digest(URI) == digest(copy)
    Image.fromarray(np.full((64, 96, 3), 90, np.uint8)).save(tmp_path / "photo.png")
    first, second = (seamseg.load(model, "cpu").predict(tmp_path / "photo.png") for model in (URI, copy))
    assert first == second
    net = build_network(config_of("panoptic"), 2, 1)
    for name in (URI, f"body:{URI}", f"body:{URI}/model.safetensors"):
        assert load_pretrained(net, name).skipped == []
    assert weights_at(URI).name == "model.safetensors"
    downloads = [line for line in fake_hub.requests if line.startswith("GET ") and line.endswith(".safetensors")]
    assert len(downloads) == 1, "then from the cache"


def test_revisions_and_files(fake_hub, run, commit):
    repo = fake_hub.repos[NAME]
    text = repo.commits[commit]["metadata.json"]
    repo.revisions["v1.0"] = commit
    second = repo.commit({"metadata.json": text.replace(b'"cc-by-4.0"', b'"mit"')})
    repo.commit({"metadata.json": text.replace(b'"cc-by-4.0"', b'"other"')}, "main")
    repo.revisions["refs/pr/2"] = repo.revisions["a/b"] = second
    found = [open_model(f"{URI}@{name}").licence for name in ("v1.0", second, "refs/pr/2", "a%2Fb", "main")]
    assert found == ["cc-by-4.0", "mit", "mit", "mit", "other"]
    assert open_model(URI).licence == "other"
    repo.commit({"snapshots/last.pth.tar": (run / "model_last.pth.tar").read_bytes(), "a.onnx": b"not a graph"})
    fake_hub.requests.clear()
    assert open_model(f"{URI}@main/snapshots/last.pth.tar").metadata == CLASSES
    assert fake_hub.fetched() == {"last.pth.tar"}
    with pytest.raises(InputError, match=r"a\.onnx: not an ONNX file"):
        seamseg.load(f"{URI}/a.onnx", "cpu")


def test_no_network_and_a_hub_that_fails(fake_hub, commit, monkeypatch):
    open_model(URI)
    fake_hub.failure = 500
    assert refusal("hf://someone/else", SeamsegError).count("(500 the hub is being repaired)") == 1
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert open_model(URI).metadata == CLASSES
    message = refusal("hf://someone/else", SeamsegError)
    assert message.startswith("not in the cache, or not completely, and the hub cannot be reached (ConnectError: ")
    fake_hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert open_model(URI).metadata == open_model(f"{URI}@{commit}").metadata == CLASSES
    said = "not in the cache, or not completely, and HF_HUB_OFFLINE is set; download it elsewhere with `hf download"
    for end, option in (("", ""), ("@v1", " --revision v1")):
        assert refusal(f"hf://someone/else{end}") == f"{said} someone/else{option} --local-dir DIR` and name DIR"
    assert fake_hub.requests == []


def test_missing_repository_revision_and_file(fake_hub, commit):
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


def test_malformed_names_and_files_that_are_not_downloaded(fake_hub):
    for uri in ("hf://", "hf://name", "hf://a/b@", "hf://a/b/*.tar"):
        assert refusal(uri).startswith("malformed: write hf://user/repo, ")
    assert refusal(f"{URI}/a.PT2").startswith("not downloaded: a .pt2 package is a program")
    assert refusal(f"{URI}/../../a.tar").startswith("malformed: ../../a.tar is not inside")
    # as users know it from transformers
    for name in ("https://huggingface.co/a/b", "hf:a/b", "a/b"):
        with pytest.raises(InputError, match=f"^{name}: no such model; did you mean hf://a/b"):
            local_model(name)
    assert fake_hub.requests == []


# --- upload


def push(model, repo=NAME, licence="", scores=None, **options):
    card = CardOptions(["cityscapes"] if scores is not None else (), scores)
    return push_model(model, repo, ConversionOptions(licence, force=True), card, **options)


def card_of(folder, model, **options):
    push(model, folder=folder, **options)
    return ModelCard((folder / "README.md").read_text())


def write_scores(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_uploads_that_are_refused(fake_hub, run, tmp_path, monkeypatch):
    for name in ("street", "a/b/c", "hf://a/b"):
        with pytest.raises(InputError, match="not the name of a repository: give user/repo"):
            push(run, name, folder=tmp_path / "out")
    fake_hub.repos[NAME] = Repo(private=False)
    before = fake_hub.repos[NAME].commit({"a": b"b"})
    with pytest.raises(InputError, match="exists and is public, nothing was uploaded"):
        push(run, private=True)
    assert fake_hub.repos[NAME].find("main") == before
    monkeypatch.setattr(HfApi, "upload_folder", Mock(side_effect=ValueError("Invalid metadata\n- license")))
    with pytest.raises(InputError, match=f"^hf://{NAME}: Invalid metadata - license$"):
        push(run)


def test_the_card(run, tmp_path):
    scores = write_scores(tmp_path / "scores.json", PANOPTIC | {"mIoU_segments": 0.5})
    card = card_of(tmp_path / "out", run, licence="cc-by-4.0", scores=scores)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "README.md"}
    data = card.data.to_dict()
    metrics = [(m["type"], m["name"], m["value"]) for m in data.pop("model-index")[0]["results"][0]["metrics"]]
    assert metrics == [
        ("pq", "PQ", 61.23),
        ("pq_things", "PQ, things", 50.0),
        ("sq", "SQ", 80.0),
        ("rq", "RQ", 70.0),
        ("mean_iou", "mIoU (class map)", 75.0),
        ("mean_iou", "mIoU (segments)", 50.0),
    ]
    assert data == {
        "library_name": "seamseg",
        "pipeline_tag": "image-segmentation",
        "tags": ["panoptic-segmentation", "resnet18", "safetensors"],
        "datasets": ["cityscapes"],
        "license": "cc-by-4.0",
    }
    assert "| PQ | 61.23 |" in card.text
    assert f'\nmodel = seamseg.load("{URI}")\n' in card.text
    assert f"\npip install '.[torch,hub]'\nseamseg predict {URI} photos/ out/\n" in card.text
    assert "| 1 | road\\|street | stuff | #804080 |" in card.text
    assert "| 2 | car | thing | #00008e |" in card.text


def test_licences(run, tmp_path):
    named = {"license": "other", "license_name": "Ask us: a@b.c"}
    stated = {"CC BY-NC-SA 4.0": {"license": "cc-by-nc-sa-4.0"}, "Ask us: a@b.c": named, "": {}}
    for licence, wanted in stated.items():
        card = card_of(tmp_path / "out", run, licence=licence)
        assert {key: value for key, value in card.data.to_dict().items() if key.startswith("license")} == wanted
        assert "model-index" not in card.data.to_dict()
        assert (licence or "No licence of the weights is stated.") in card.text


@pytest.mark.parametrize(
    ("kind", "content", "pipeline", "first"),
    [
        ("instance_seg", {"box": {"AP": 0.5}, "mask": {"AP": 0.25}}, "image-segmentation", ("mask AP", 25.0)),
        # of a metric of one's own
        ("detection", {"accuracy": 0.3, "box": {"AP": 0.5}}, "object-detection", ("pixel accuracy", 30.0)),
        ("semantic", {"mIoU": 0.5, "accuracy": 0.875}, "image-segmentation", ("mIoU", 50.0)),
        ("classification", {"top1": 76.5, "top5": 93.25}, "image-classification", ("top-1 accuracy", 76.5)),
    ],
)
def test_cards_of_other_kinds(kind, content, pipeline, first, tmp_path):
    folder = tmp_path / "run"
    model = write_classifier(folder) if kind == "classification" else write_run(folder, kind)
    card = card_of(tmp_path / "out", model, scores=write_scores(tmp_path / "s.json", content))
    assert card.data.pipeline_tag == pipeline
    metric = card.data.eval_results[0]
    assert (metric.metric_name, metric.metric_value) == first
    assert "thing" not in card.text if kind == "classification" else "| thing |" in card.text


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("panoptic", "{", "not JSON, or a truncated one"),
        ("panoptic", "[]", "no PQ: not the scores of a network of kind panoptic"),
        ("panoptic", {"mIoU": 0.5}, "has mIoU, no PQ: not the scores"),
        ("semantic", {"mIoU": 0.5, "box": {"AP": 0.5}}, "has box.AP, no mIoU: not the scores"),
        ("panoptic", {"PQ": 0.5, "per_class": {"car": {}}}, "scores of 1 classes, the model has 3"),
    ],
)
def test_wrong_scores(kind, tmp_path, content, expected):
    path = write_scores(tmp_path / "s.json", content)
    with pytest.raises(InputError) as error:
        push(write_run(tmp_path / "run", kind), folder=tmp_path / "out", scores=path)
    assert str(error.value).startswith(f"{path}: {expected}")
    assert [*(tmp_path / "out").iterdir()] == []


def test_push(fake_hub, run, tmp_path, seamseg_main, capsys):
    scores = write_scores(tmp_path / "s.json", PANOPTIC)
    words = ("push", run, NAME, "--licence", "mit")
    assert seamseg_main(*words, "--dry-run", tmp_path / "out") == 0
    assert fake_hub.requests == []
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "out" / n) for n in sorted({*FILES, "README.md"})]
    assert seamseg_main(*words, "--dataset", "cityscapes", "--dataset", "toy", "--scores", scores, "--private") == 0
    commit = fake_hub.repos[NAME].find("main")
    assert capsys.readouterr().out == f"hf://{NAME}@{commit}\n"
    assert fake_hub.repos[NAME].private
    assert open_model(f"hf://{NAME}@{commit}").metadata == CLASSES
    card = ModelCard(fake_hub.repos[NAME].commits[commit]["README.md"].decode())
    assert card.data.datasets == ["cityscapes", "toy"]
    assert seamseg_main("push", run, NAME, "--scores", scores) == 2
    assert capsys.readouterr().err == (f"seamseg push: --scores {scores}: name the data set with --dataset NAME\n")
