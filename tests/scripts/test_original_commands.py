"""The original's command lines, word for word, through the scripts of the same names."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.cli import legacy
from seamseg.cli.main import build_parser

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAIN = ["train", "C.ini", "data", "--restart", "--legacy"]
EVAL = ["train", "C.ini", "data", "--eval"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("C.ini data", TRAIN),
        ("--log_dir run C.ini data", [*TRAIN, "--log-dir", "run"]),
        ("--resume m.pth.tar --eval C.ini data", [*EVAL, "--resume", "m.pth.tar"]),
        ("C.ini --log-dir run data", [*TRAIN, "--log-dir", "run"]),
        ("C.ini data --pre_train a.pth body:b.pth", [*TRAIN, "--pre-train", "a.pth", "--pre-train", "body:b.pth"]),
        ("C.ini data --pre_train a.pth --pre_train b.pth", [*TRAIN, "--pre-train", "a.pth", "--pre-train", "b.pth"]),
        ("--pre-train a.pth --eval C.ini data", [*EVAL, "--pre-train", "a.pth"]),
        # the files do not swallow CONFIG and DATA
        ("--pre_train a.pth C.ini data --local_rank 0", [*TRAIN, "--pre-train", "a.pth"]),
        ("C.ini --pre_train a.pth data", [*TRAIN, "--pre-train", "a.pth"]),
        ("--pre_train a.pth -- C.ini data", [*TRAIN, "--pre-train", "a.pth"]),
    ],
)
def test_training_arguments(arguments: str, expected: list[str]) -> None:
    assert legacy.from_train_panoptic(arguments.split()) == expected


@pytest.mark.parametrize("kind", ["detection", "instance_seg"])
def test_training_of_other_kinds(kind: str) -> None:
    translate = {"detection": legacy.from_train_detection, "instance_seg": legacy.from_train_instance_seg}[kind]
    argv = translate(["--log_dir", "run", "C.ini", "data", "--pre_train", "body:b.pth"])
    assert argv == [*TRAIN, "--log-dir", "run", "--pre-train", "body:b.pth", "--set", f"general.kind={kind}"]


@pytest.mark.parametrize(
    "arguments", ["", "C.ini", "--pre_train C.ini", "--eval --resume m.pth.tar C.ini", "C.ini data more"]
)
def test_training_without_config_and_data(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        legacy.from_train_panoptic(arguments.split())
    assert stop.value.code == 2
    assert "expected CONFIG and DATA" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(None, "3"), ("1", "1")])
def test_local_rank_of_old_launchers(before: str | None, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    monkeypatch.setattr(os, "environ", environment | ({"LOCAL_RANK": before} if before else {}))
    assert legacy.from_train_panoptic(["--local-rank=3", "C.ini", "data"]) == TRAIN
    assert os.environ["LOCAL_RANK"] == after


def test_inference_arguments() -> None:
    argv = legacy.from_test_panoptic(["--meta", "m.bin", "C.ini", "model.pth.tar", "in", "out"])
    assert argv == [
        *("predict", "model.pth.tar", "in", "out", "--config", "C.ini", "--meta", "m.bin"),
        *("--restart", "--format", "overlay"),
        *("--score-threshold", "0.5", "--overlap-threshold", "0.5", "--min-area", "4096"),
    ]
    options = "--meta m.bin --score_threshold .7 --iou_threshold .4 --min_area 64 --raw C.ini model.pth.tar in out"
    assert legacy.from_test_panoptic(options.split())[8:] == [
        "--restart",
        *("--format", "raw", "--score-threshold", "0.7", "--overlap-threshold", "0.4", "--min-area", "64"),
    ]


def test_instance_segmentation_arguments() -> None:
    command = ["predict", "model.pth.tar", "in", "out", "--config", "C.ini"]
    rest = ["--set", "general.kind=instance_seg"]
    assert legacy.from_test_instance_seg(["C.ini", "model.pth.tar", "in", "out"]) == [
        *command,
        *("--restart", "--format", "overlay-legacy", "--score-threshold", "0.5"),
        *rest,
    ]
    options = "--local_rank 0 --log_dir log --meta m.bin --threshold .7 --raw C.ini model.pth.tar in out"
    assert legacy.from_test_instance_seg(options.split()) == [
        *command,
        *("--meta", "m.bin", "--restart", "--format", "raw", "--score-threshold", "0.7"),
        *rest,
    ]


IMAGENET = ["classify", "train", "C.json", "data", "--restart"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "C.json data",
            [*IMAGENET, "--log-dir", ".", "--set", "training.num_workers=2", "--set", "training.log_interval=10"],
        ),
        (
            "C.json data -j 8 -p 50 --log-dir run --log-hist --dist-backend nccl",
            [
                *(*IMAGENET, "--log-dir", "run", "--log-hist"),
                *("--set", "training.num_workers=8", "--set", "training.log_interval=50"),
            ],
        ),
        (
            "C.json data -e --resume c.pth.tar",
            [
                *("classify", "validate", "C.json", "c.pth.tar", "data"),
                *("--set", "training.num_workers=2", "--set", "training.log_interval=10"),
            ],
        ),
    ],
)
def test_training_arguments_of_classifiers(arguments: str, expected: list[str]) -> None:
    assert legacy.from_train_imagenet(arguments.split()) == expected


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("", ["--crop", "224", "--scale", "256", "--set", "training.num_workers=4"]),
        ("-c 320 -s 320 -j 1", ["--crop", "320", "--scale", "320", "--set", "training.num_workers=1"]),
        ("--ten_crops", ["--crop", "224", "--scale", "256", "--ten-crops", "--set", "training.num_workers=4"]),
    ],
)
def test_validation_arguments_of_classifiers(arguments: str, options: list[str]) -> None:
    argv = legacy.from_test_imagenet([*arguments.split(), "C.json", "c.pth.tar", "data"])
    assert argv == ["classify", "validate", "C.json", "c.pth.tar", "data", *options]


@pytest.mark.parametrize(
    ("translate", "arguments", "message"),
    [
        (legacy.from_train_imagenet, "C.json data -e", "--evaluate needs --resume PATH"),
        (legacy.from_test_panoptic, "C.ini model.pth.tar in out", "--meta"),
        *(
            (legacy.from_test_vistas, f"--scales {scales} net.pth.tar in out", "expected a list of positive numbers")
            for scales in ("[0.7,1", "__import__('os').getcwd()", "[]", "['1']", "[-1]", "[1e3,None]")
        ),
    ],
)
def test_mistakes(translate, arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        translate(arguments.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        legacy.from_train_panoptic(["--pre_train", "body:b.pth", "--eval", "--resume", "m.tar", "C.ini", "data"]),
        legacy.from_train_detection(["C.ini", "data"]),
        legacy.from_test_panoptic(["--meta", "m.bin", "--raw", "C.ini", "model.pth.tar", "in", "out"]),
        legacy.from_test_instance_seg(["--meta", "m.bin", "--raw", "C.ini", "model.pth.tar", "in", "out"]),
        legacy.from_prepare_cityscapes(["root", "out"]),
        legacy.from_prepare_vistas(["root", "out"]),
        legacy.from_convert_resnet(["resnet18", "out.pth"]),
        legacy.from_train_imagenet(["C.json", "data", "--log-hist"]),
        legacy.from_test_imagenet(["--ten_crops", "C.json", "c.pth.tar", "data"]),
    ],
    ids=lambda argv: argv[0],
)
def test_translations_are_valid_commands(argv: list[str]) -> None:
    args = build_parser(argv).parse_args(argv)
    assert args.command == argv[0]


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


VISTAS = ["predict", "net.pth.tar", "in", "out", "--restart", "--format"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [*VISTAS, "ids", "--tta", "0.7,1,1.2", "--tta-fusion", "mean"]),
        (["--flip", "--scales", "[1]"], [*VISTAS, "ids", "--tta", "1,flip", "--tta-fusion", "mean"]),
        (["--output-mode", "palette"], [*VISTAS, "labels", "--tta", "0.7,1,1.2", "--tta-fusion", "mean"]),
        (["--output-mode", "raw"], [*VISTAS, "ids", "--tta", "0.7,1,1.2", "--tta-fusion", "mean"]),
        (
            ["--output-mode", "prob", "--fusion-mode", "voting", "--size", "512", "--world-size", "2", "--rank", "1"],
            [*VISTAS, "ids,probabilities", "--tta", "0.7,1,1.2", "--tta-fusion", "voting", "--size", "512"],
        ),
    ],
)
def test_vistas_arguments(arguments: list[str], expected: list[str]) -> None:
    ours = legacy.from_test_vistas([*arguments, "net.pth.tar", "in", "out"])
    assert ours == expected
    build_parser(ours).parse_args(ours)
