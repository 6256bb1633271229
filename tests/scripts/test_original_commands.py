"""The original's command lines, word for word, through the scripts of the same names."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.cli import legacy
from seamseg.cli.main import build_parser

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAIN, EVAL = "train C.ini data --restart --legacy", "train C.ini data --eval"
TEST = "predict m.pth.tar in out --config C.ini"
IMAGENET, VALIDATE = "classify train C.json data --restart", "classify validate C.json c.pth.tar data"
VISTAS = "predict net.pth.tar in out --restart --format"
VIEWS = "--tta 0.7,1,1.2 --tta-fusion"


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("train_panoptic", "C.ini data", TRAIN),
        ("train_panoptic", "--log_dir run C.ini data", f"{TRAIN} --log-dir run"),
        ("train_panoptic", "--resume m.pth.tar --eval C.ini data", f"{EVAL} --resume m.pth.tar"),
        ("train_panoptic", "C.ini --log-dir run data", f"{TRAIN} --log-dir run"),
        ("train_panoptic", "C.ini data --pre_train a body:b", f"{TRAIN} --pre-train a --pre-train body:b"),
        # the files do not swallow CONFIG and DATA
        ("train_panoptic", "--pre_train a C.ini data --local_rank 0", f"{TRAIN} --pre-train a"),
        ("train_panoptic", "C.ini --pre-train a data", f"{TRAIN} --pre-train a"),
        ("train_panoptic", "--pre_train a -- C.ini data", f"{TRAIN} --pre-train a"),
        ("train_detection", "C.ini data", f"{TRAIN} --set general.kind=detection"),
        ("train_instance_seg", "--eval C.ini data", f"{EVAL} --set general.kind=instance_seg"),
        (
            "test_panoptic",
            "--meta m.bin C.ini m.pth.tar in out",
            f"{TEST} --meta m.bin --restart --format overlay "
            "--score-threshold 0.5 --overlap-threshold 0.5 --min-area 4096",
        ),
        (
            "test_panoptic",
            "--meta m.bin --score_threshold .7 --iou_threshold .4 --min_area 64 --raw C.ini m.pth.tar in out",
            f"{TEST} --meta m.bin --restart --format raw --score-threshold 0.7 --overlap-threshold 0.4 --min-area 64",
        ),
        (
            "test_instance_seg",
            "C.ini m.pth.tar in out",
            f"{TEST} --restart --format overlay-legacy --score-threshold 0.5 --set general.kind=instance_seg",
        ),
        (
            "test_instance_seg",
            "--local_rank 0 --log_dir log --meta m.bin --threshold .7 --raw C.ini m.pth.tar in out",
            f"{TEST} --meta m.bin --restart --format raw --score-threshold 0.7 --set general.kind=instance_seg",
        ),
        ("test_vistas", "net.pth.tar in out", f"{VISTAS} ids {VIEWS} mean"),
        ("test_vistas", "--flip --scales [1] net.pth.tar in out", f"{VISTAS} ids --tta 1,flip --tta-fusion mean"),
        ("test_vistas", "--output-mode palette net.pth.tar in out", f"{VISTAS} labels {VIEWS} mean"),
        (
            "test_vistas",
            "--output-mode prob --fusion-mode voting --size 512 --world-size 2 --rank 1 net.pth.tar in out",
            f"{VISTAS} ids,probabilities {VIEWS} voting --size 512",
        ),
        ("prepare_cityscapes", "root out", "prepare cityscapes root out"),
        ("prepare_vistas", "root out", "prepare vistas root out"),
        ("convert_resnet", "resnet18 out.pth", "convert-backbone resnet18 out.pth --force"),
        (
            "train_imagenet",
            "C.json data",
            f"{IMAGENET} --log-dir . --set training.num_workers=2 --set training.log_interval=10",
        ),
        (
            "train_imagenet",
            "C.json data -j 8 -p 50 --log-dir run --log-hist --dist-backend nccl",
            f"{IMAGENET} --log-dir run --log-hist --set training.num_workers=8 --set training.log_interval=50",
        ),
        (
            "train_imagenet",
            "C.json data -e --resume c.pth.tar",
            f"{VALIDATE} --set training.num_workers=2 --set training.log_interval=10",
        ),
        (
            "test_imagenet",
            "C.json c.pth.tar data",
            f"{VALIDATE} --crop 224 --scale 256 --set training.num_workers=4",
        ),
        (
            "test_imagenet",
            "-c 320 -s 320 -j 1 --ten_crops C.json c.pth.tar data",
            f"{VALIDATE} --crop 320 --scale 320 --ten-crops --set training.num_workers=1",
        ),
    ],
)
def test_arguments(script: str, arguments: str, expected: str) -> None:
    assert getattr(legacy, f"from_{script}")(arguments.split()) == expected.split()
    build_parser(expected.split()).parse_args(expected.split())


@pytest.mark.parametrize(("before", "after"), [(None, "3"), ("1", "1")])
def test_local_rank_of_old_launchers(before: str | None, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    monkeypatch.setattr(os, "environ", environment | ({"LOCAL_RANK": before} if before else {}))
    assert legacy.from_train_panoptic(["--local-rank=3", "C.ini", "data"]) == TRAIN.split()
    assert os.environ["LOCAL_RANK"] == after


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        *(("train_panoptic", words, "expected CONFIG and DATA") for words in ("", "--pre_train C.ini", "C.ini data b")),
        ("train_imagenet", "C.json data -e", "--evaluate needs --resume PATH"),
        ("test_panoptic", "C.ini m.pth.tar in out", "--meta"),
        *(
            ("test_vistas", f"--scales {scales} net.pth.tar in out", "expected a list of positive numbers")
            for scales in ("[0.7,1", "__import__('os').getcwd()", "[]", "['1']", "[-1]")
        ),
    ],
)
def test_mistakes(script: str, arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        getattr(legacy, f"from_{script}")(arguments.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("script", [*SCRIPTS.glob("*.py"), *SCRIPTS.glob("data_preparation/*.py")])
def test_scripts_explain_themselves(script: Path) -> None:
    environment = {**os.environ, "SEAMSEG_MALLOC": "off"}
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    assert f"usage: {script.name}" in done.stdout
    assert "as `seamseg" in " ".join(done.stdout.split())


def test_a_script_passes_the_exit_code_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(SCRIPTS / "train_panoptic.py")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "missing.ini"), str(tmp_path)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(script, run_name="__main__")
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "this is now: seamseg train" in error
    assert "missing.ini: no such config file" in error
