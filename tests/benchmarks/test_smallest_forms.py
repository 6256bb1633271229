"""Every script of benchmarks/ in its smallest form succeeds, and writes its table and JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {"stages", "timing", "street", "plain", "peer", "operator_cases", "gpu_machine", "gpu_steps", "gpu_tables"}
"""Modules imported by the scripts."""
CASE = r"\d  .+ +\d+\.\d\d +\d+\.\d\d"
"""A row of `timing.report`: milliseconds, the peer, its milliseconds, the ratio."""
SMALLEST: dict[str, tuple[str, str]] = {
    "ablation": (
        "crop --epochs 1 --seeds 1 --train 2 --val 3 --out OUT.runs --json OUT",
        r"\| crop \| \d+\.\d.* pretrained ",
    ),
    "abn": ("layer --rounds 1 --json OUT", CASE),
    "abn_precision": ("gradients", r"identity \+ residual +1e-06 +\d"),
    "backbones": ("resnet18 --body-size 64 128 --size 64 128 --rounds 1 --json OUT", r"resnet18 .*0?\.\d"),
    "bandwidth": ("statistics --small --rounds 1 --json OUT", r"abn_statistics +\d+x.* \d"),
    "boxes": ("--rounds 1 --json OUT 1000", CASE),
    "checkpointing": ("--size 64x128 --rounds 1 --config toy_city_r18", r"body \+ pyramid +\d"),
    "cityscapes": ("pixel --frames 1 --rounds 1 --json OUT", CASE),
    "demo": (
        "--json OUT --options '--train 2 --val 1 --set scheduler.epochs=1 --set scheduler.burn_in_steps=0 "
        "--set dataloader.train_batch_size=2'",
        r"now +\d+ +1\.00 +\d+ +\d+\.\d\d",
    ),
    "exported": (
        "fp32 separated onnx openvino-int8 --config toy_city_r18 --size 64x96 --rounds 1 --json OUT",
        r"separated( +\d+\.\d+){3}(.|\n)*openvino-int8( +\d+\.\d+){3}",
    ),
    "exports": ("ids --rounds 1 --json OUT", CASE),
    "figures": ("", r"\d+ figures agree"),
    "fixed_samples": ("--side 64 --rounds 1 --config toy_city_r18 --json OUT", CASE),
    "fusion": ("--rounds 1 --json OUT", CASE),
    "golden": ("flower --device cpu --json OUT", r"fp32 agrees with the original"),
    "gpu": ("--device cpu --small --steps build,fusion,tables --out OUT", r"fusion +done"),
    "histogram": ("uint8 --rounds 1 --json OUT", CASE),
    "huge_photo": (
        "300x200 --network small --tiles 128 --formats coco,overlay --against HEAD --json OUT",
        r"300x200 .* 128 .*now +\d",
    ),
    "id_maps": ("zlib --rounds 1 --json OUT", CASE),
    "inference": (
        "--rounds 1 --sides 64 --precision fp32 --strong 33 --json OUT plain every_mask maskrcnn",
        r"plain takes \d.*\n.*every_mask takes \d.*\n.*maskrcnn takes \d",
    ),
    "int8": ("--train 2 --val 1 --epochs 1 --size 128x256 --calibrate 1 --rounds 1 --json OUT", r"onnx int8 +\d.*PQ"),
    "kill_ranks": ("--kills 1 --seed 3", r"kills: 1.*\n.*equal the undisturbed run's"),
    "loading": ("item --rounds 1 --size 128 --json OUT", r"images/s, peer \d"),
    "malloc": ("--rounds 1", r"ratio \d"),
    "memory": ("--size 64 128 --json OUT", r"in-place ABN +\d"),
    "merge_queries": ("1024x2048 --rounds 1 --json OUT", r"C library +\d.*\nnumpy +\d"),
    "network": ("--rounds 1 --side 64 --config toy_city_r18 --json OUT", r"positives_fixed( +\d+\.\d+){6} +\d"),
    "one_card": ("--device cpu --steps 2 --json OUT", r"all agree"),
    "operators": ("--device cpu --seconds 0 --no-cases --seed 7 --json OUT", r"nothing differs"),
    "panoptic_quality": ("--pairs 2 --rounds 1 --workers 1", r"seamseg +\d(.|\n)*the same scores"),
    "pooling": ("pool --rounds 1 --json OUT", CASE),
    "prepare": ("cityscapes --rounds 1 --json OUT", CASE),
    "ray_data": ("--help", r"Compare the throughput"),
    "roi": ("ids --rounds 1 --json OUT", CASE),
    "scaling": ("--rounds 1 --side 64 --config toy_city_r18", r"scaling efficiency \d"),
    "semantic": ("19 --rounds 1 --json OUT", CASE),
    "semantic_network": ("fp32 --size 64 --rounds 1 --json OUT", CASE),
    "serving": (
        "--config toy_city_r18 --size 64x96 --clients 1 2 --batch-size 2 --requests 4 --rounds 1 --json OUT",
        r"calls +1 +\d(.|\n)*batch 2 +2 +\d",
    ),
    "soak_predict": ("--images 12 --kills 1", r"every image once"),
    "startup": ("--against HEAD --rounds 1 --json OUT", r"import seamseg +\d+ +\d+ +\d\.\d\d"),
    "throughput": (
        "plain torchvision --device cpu --size 64x96 --rounds 1 --photos 2 --workers 0 --config toy_city_r18 "
        "--json OUT",
        r"plain +predict +\d.*outside \d(.|\n)*torchvision +predict +\d",
    ),
    "toy_city": ("--device cpu --train 2 --val 1 --epochs 1 --log-interval 1 --json OUT", r"PQ +\d"),
    "train_step": (
        "--device cpu --size 64x128 --rounds 1 --config toy_city_r18 --json OUT",
        r"torchvision_bf16 +\d(.|\n)*checkpointed, not compiled +\d(.|\n)*with torchvision.*fast, not compiled \d",
    ),
    "two_nodes": ("--epochs 1 --images 2", r"the same weights to the bit"),
    "waiting_threads": ("--rounds 1 --settings OMP_NUM_THREADS=1 --neighbours none", r"OMP_NUM_THREADS=1 +\d"),
}
"""Arguments, and a pattern of the output."""


FURTHER = {
    "two_nodes": "network namespaces need root and the command `ip`|ip netns add",
    "cityscapes": "pip install cityscapesscripts",
}
"""Scripts with further requirements, and a pattern of their error message if these are missing."""
LEFT_OUT = {"abn": "inplace_abn", "merge_queries": "transformers", "panoptic_quality": "panopticapi"}
"""Scripts with a peer that is seldom installed, and its module: a line of the output names it then."""


def test_every_script_is_listed():
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == set(SMALLEST) | MODULES


WRITERS = "--writers 1,2 --device cpu --size 64x96 --rounds 1 --photos 4 --config toy_city_r18 --json OUT"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [*SMALLEST.items(), ("throughput", (WRITERS, r"estimate .* \d"))])
def test_smallest_form(name, form, tmp_path):
    words, wanted = form
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *shlex.split(words.replace("OUT", str(out)))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0 and name in FURTHER and re.search(FURTHER[name], done.stderr):
        assert len(done.stderr.splitlines()) == 1, done.stderr
        pytest.skip(done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert re.search(wanted, done.stdout), done.stdout[-3000:]
    if name in LEFT_OUT and importlib.util.find_spec(LEFT_OUT[name]) is None:
        assert f"{LEFT_OUT[name].replace('_', '-')} is left out" in done.stdout
    if "--json" in words:
        assert json.loads(out.read_text())
