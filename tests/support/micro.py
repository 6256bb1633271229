"""A micro data set and a small network on which training and prediction take seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from seamseg.config import Config, load_config
from seamseg.config.experiments import TINY_NETWORK
from seamseg.maps.evaluation.scores import PanopticScores
from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.models.backbones.resnet import RESNETS, Architecture
from seamseg.training import callbacks  # noqa: F401 (registered before a test has a registry of its own)

SHORT = """[scheduler]
epochs = 2
burn_in_steps = 2
[dataloader]
shortest_size = 64
longest_max_size = 128
train_batch_size = 2
val_batch_size = 2
random_scale = None
num_workers = 0
train_set = train
val_set = val
"""
"""Two epochs."""

CONFIG = f"""{TINY_NETWORK}
[body]
body = resnet18
normalization_mode = {{norm}}
num_frozen = 0
bn_frozen = no
out_channels = {{{{"mod1": 64, "mod2": 8, "mod3": 16, "mod4": 16, "mod5": 16}}}}
[optimizer]
lr = 0.005
weight_decay_norm = no
{SHORT}random_flip = no
[callback tensorboard]
enabled = no
"""
TENSORBOARD = "callback tensorboard.enabled=yes"
"""Writes what takes a fifth of the time of such a training."""


class _Narrow(Architecture):
    def channels(self, module: int) -> tuple[int, ...]:
        width = 8 if module == 2 else 16
        return width, width


@contextmanager
def narrow_body() -> Iterator[None]:
    """Make `resnet18` a far smaller network."""
    with mock.patch.dict(RESNETS, resnet18=_Narrow((1, 1, 1, 1), bottleneck=False)):
        yield


@pytest.fixture
def narrow() -> Iterator[None]:
    with narrow_body():
        yield


def write_config(path: Path, norm: str = "syncbn", extra: str = "") -> Path:
    path.write_text(CONFIG.format(norm=norm) + extra)
    return path


def draw_scene(rng: np.random.Generator, size: tuple[int, int], boxes: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A sky above a road with a few bright cars: RGB, ids and the class of each id."""
    height, width = size
    ids = np.ones(size, np.uint8)
    ids[height // 2 :] = 2
    cat = [VOID, 0, 1]
    rgb = np.empty((*size, 3), np.uint8)
    rgb[: height // 2], rgb[height // 2 :] = (90, 150, 220), (70, 70, 70)
    for _ in range(boxes):
        y, x = int(rng.integers(height // 3, height - 20)), int(rng.integers(0, width - 30))
        ids[y : y + 18, x : x + 26] = len(cat)
        rgb[y : y + 18, x : x + 26] = (220, 40, 40)
        cat.append(2)
    ids[:3, :5] = 0
    return np.clip(rgb + rng.integers(-8, 8, rgb.shape), 0, 255).astype(np.uint8), ids, cat


def make_dataset(root: Path, train: list[int], val: list[int]) -> Path:
    """A dataset folder of 64x96 (and one 96x64) images with the numbers of cars in the lists."""
    for folder in ("img", "msk", "lst"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    images = []
    for split, counts in (("train", train), ("val", val)):
        names = []
        for number, boxes in enumerate(counts):
            size = (96, 64) if number == 1 else (64, 96)
            rgb, ids, cat = draw_scene(rng, size, boxes)
            name = f"{split}{number}"
            Image.fromarray(rgb).save(root / "img" / f"{name}.png")
            Image.fromarray(ids).save(root / "msk" / f"{name}.png")
            images.append(ImageInfo(name, cat, size, [0] * len(cat)))
            names.append(name)
        (root / "lst" / f"{split}.txt").write_text("\n".join(names) + "\n")
    palette = [(70, 130, 180), (128, 64, 128), (0, 0, 142)]
    write_metadata(root / "metadata.bin", Metadata(2, 1, ["sky", "road", "car"], palette, [23, 7, 26], images))
    return root


def train(config: Path, data: Path, run: Path, *overrides: str, **options: Any) -> PanopticScores | None:
    """Train on the CPU; the scores of the last validation."""
    from seamseg.training.run import TrainingOptions, run_training

    return run_training(TrainingOptions(config, data, run, overrides=overrides, device="cpu", **options)).validation


@pytest.fixture
def published_config() -> Callable[[str], Config]:
    return lambda name: load_config(Path(__file__).parents[2] / "configs" / f"{name}.ini")


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("micro"), [2, 1, 0, 3], [1, 2, 0])


@pytest.fixture(scope="session")
def micro_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("config") / "micro.ini")


@pytest.fixture(scope="session")
def micro_run(micro: Path, micro_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder after two epochs; do not write to it."""
    run = tmp_path_factory.mktemp("runs") / "micro"
    with narrow_body():
        train(micro_config, micro, run, TENSORBOARD)
    return run


@pytest.fixture
def seamseg_main() -> Callable[..., int]:
    from seamseg.cli.main import main

    return lambda *words: main([str(word) for word in words])


@pytest.fixture
def refused(
    seamseg_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Run a command, which must fail with exit code 2 and one line and leave nothing; return the line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        assert seamseg_main(*words, "--quiet") == 2
        captured = capsys.readouterr()
        (line,) = captured.err.strip().splitlines()
        assert captured.out == ""
        assert line.startswith(tuple(f"seamseg {' '.join(map(str, words[:n]))}: " for n in (1, 2))), line
        for name in ("EVIL", "run", "scores.json"):
            assert not (tmp_path / name).exists()
        assert not list(tmp_path.rglob("*.partial"))
        return line

    return run
