"""What only reads and writes files starts without torch, which costs half a gigabyte and seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seamseg

PROGRAM = """
import contextlib, io, json, sys, traceback
class Forbidden:
    # whoever asks is written down: it could be a process of its own, or content without
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            with open("asked.txt", "a") as file:
                file.writelines(traceback.format_stack())
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Forbidden)
from seamseg.cli.main import main
printed = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if main(["--debug", *words.split()]):
            sys.exit(1)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
SCORED = "evaluate --gt exported/coco/panoptic_val.json --pred exported/coco/panoptic_val.json --workers 2"
COMMANDS = {
    "prepare toy-city raw --train 2 --val 2 --size 64x128 --workers 2": "",
    "prepare cityscapes raw data --workers 2": "",
    "prepare export data exported --format coco,cityscapes --workers 2": "",
    "prepare toy-things things --train 2 --val 2 --workers 1": "things/train: ",
    "prepare --check data --workers 2": "errors: 0",
    "prepare merge data data merged --workers 2": "",
    "prepare panoptic own --split val data/img results/panoptic.json results/panoptic --workers 2": "",
    "evaluate --protocol cityscapes --gt raw/gtFine/val --pred results --workers 2": "100.00",
    f"{SCORED} --json metrics.json": " 100.00",
    f"{SCORED} --legacy-metrics": " 100.00",
    f"{SCORED} --out evaluation --photos data/img": "",
    "report evaluation": "open evaluation",
    "report evaluation --against evaluation --out page.html": "open page.html",
}
"""Commands, one after the other in a folder, and a part of what each prints; `results` is what `export` has written."""


def test_commands_that_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name, exported in (("panoptic.json", "panoptic_val.json"), ("panoptic", "panoptic_val")):
        (tmp_path / "results" / name).symlink_to(tmp_path / "exported" / "coco" / exported)
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(COMMANDS))]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert not (tmp_path / "asked.txt").exists(), (tmp_path / "asked.txt").read_text()
    assert done.returncode == 0, done.stderr
    for (words, part), printed in zip(COMMANDS.items(), json.loads(done.stdout), strict=True):
        assert part in printed, words


MISTAKES = [
    ("train my.in data", "my.in: no such config file; did you mean my.ini?"),
    ("train fastest data", "fastest: no such config file; packaged are cityscapes_convnext_tiny, cityscapes_r50,"),
    ("train my.ini data --set body.weights=r50.pth", "[body] weights = r50.pth: no such file or run folder"),
    ("predict runs/dmo images out", "runs/dmo: no such model; did you mean runs/demo?"),
    ("predict runs/demo phots out", "phots: no such image, video, folder or list; did you mean photos?"),
    ("predict runs/demo phots/a.jpg out", "video, folder or list; did you mean photos/a.jpg?"),
    ("predict rns/demo photos out", "rns/demo: no such model; did you mean runs/demo?"),
    ("evaluate runs/dmo data", "runs/dmo: no such model; did you mean runs/demo?"),
    ("export runs/dmo x.onnx", "runs/dmo: no such model; did you mean runs/demo?"),
    ("convert-model runs/dmo out", "runs/dmo: no such model; did you mean runs/demo?"),
    ("push runs/dmo user/city", "runs/dmo: no such model; did you mean runs/demo?"),
    ("serve runs/dmo", "runs/dmo: no such model; did you mean runs/demo?"),
    ("classify validate toy_things_resnet runs/demo data", "did you mean the packaged experiment toy_things_resnext?"),
    ("prepare cityscapes dta out", "dta: no such folder or archive; did you mean data?"),
    ("prepare merge data data out", "data/metadata.bin: not a metadata file: it ends where a map should start"),
    ("report runs/dmo", "runs/dmo: no such folder; did you mean runs/demo?"),
    ("evaluate --gt my.in --pred my.ini", "my.in: no such file (COCO panoptic JSON); did you mean my.ini?"),
]  # fmt: skip
"""Commands, and what their message contains."""

MISSING = [
    ("train timm.ini data", "timm", "[body] body = timm:resnet18: needs timm, which is not installed; {}[timm]'"),
    ("train my.ini data --pre-train hub/model.safetensors", "safetensors", "needs safetensors, which {}[hub]'"),
    ("predict hf://user/city images out", "huggingface_hub", "needs huggingface_hub, which is not installed; {}[hub]'"),
    ("predict a.onnx images out", "onnxruntime", "a.onnx: needs onnxruntime, which is not installed; {}[onnx]'"),
    ("evaluate a.onnx data --device openvino", "openvino", "a.onnx: needs openvino, which is not installed; {}"),
    ("export runs/demo x.onnx", "onnxscript", "x.onnx: needs onnxscript, which is not installed; {}[export]'"),
    ("convert-model runs/demo out", "safetensors", "needs safetensors, which is not installed; {}[hub]'"),
    ("serve runs/demo", "starlette", "seamseg serve: needs starlette, which is not installed; {}[serve]'"),
]  # fmt: skip
"""Commands, a package that they need, and parts of their message."""

ALL = """
import json, os, sys
sys.modules["torch"] = None
# what most of the commands import, once
import seamseg.predicting.folder, seamseg.maps.prepare.vistas
from seamseg.cli.main import main
answers = []
for words, missing in json.loads(sys.argv[1]):
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(theirs, 2)
        if missing:
            sys.modules[missing] = None
        code = main(words.split())
        sys.stderr.flush()
        os._exit(code)
    os.close(theirs)
    with open(ours) as said:
        answers.append([said.read(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The lines of all these commands, by the commands, of a process without torch."""
    folder = tmp_path_factory.mktemp("mistakes")
    # as far as they are looked at before the libraries are loaded
    for file in (
        "runs/demo/model_last.pth.tar",
        "data/metadata.bin",
        "photos/a.png",
        "hub/model.safetensors",
        "a.onnx",
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    (folder / "my.ini").write_text("[scheduler]\nepochs = 3\n")
    (folder / "timm.ini").write_text(
        "[general]\ncomponents = seamseg.contrib.recipes.timm\n[body]\nbody = timm:resnet18\n"
    )
    commands = [(words, "") for words, _ in MISTAKES] + [(words, missing) for words, missing, _ in MISSING]
    program = [sys.executable, "-c", ALL, json.dumps(commands)]
    done = subprocess.run(program, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for (words, _), (line, code) in zip(commands, json.loads(done.stdout), strict=True):
        assert (code, line.count("\n")) == (2, 1), (words, line)
        assert line.startswith(f"seamseg {words.split()[0]}: ")
        found[words] = line
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["runs", "data", "photos", "hub", "a.onnx", "my.ini", "timm.ini"]
    )
    return found


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_misspelt_names(words: str, message: str, answers: dict[str, str]) -> None:
    assert message in answers[words]


@pytest.mark.parametrize(("words", "missing", "message"), MISSING)
def test_missing_packages(words: str, missing: str, message: str, answers: dict[str, str]) -> None:
    for part in message.split("{}"):
        assert part in answers[words]
