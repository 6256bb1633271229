"""Class folders: what is read, and errors that name the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.classes import make_class_folders

from seamseg.contrib.classification.config import parse_classifier_config
from seamseg.contrib.classification.data import ClassFolders, class_names, open_train_loader, open_val_loader
from seamseg.contrib.classification.transforms import to_float
from seamseg.data.loader import index_sampler
from seamseg.data.samplers import SampleIndex
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError


def noise(image: Image.Image) -> torch.Tensor:
    """A transform that uses both global generators."""
    return to_float(image).mean() + random.random() + torch.rand(1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_class_folders(tmp_path / "data")


def test_classes_are_the_sorted_folders(root: Path) -> None:
    for name in (".ipynb_checkpoints/1.png", "red/._1.png", "red/@eaDir/1.png"):
        (root / "val" / name).parent.mkdir(exist_ok=True)
        (root / "val" / name).write_text("no image")
    dataset = ClassFolders(root, "val", to_float)
    assert dataset.classes == class_names(root, "val") == ["blue", "green", "red"]
    assert len(dataset) == 9
    image, label, name = dataset[4]
    assert (label, name, image.shape) == (1, "green/1.png", (3, 40, 45))
    assert dataset.metadata.categories == dataset.classes


def test_random_numbers_depend_on_seed_epoch_and_image_alone(root: Path) -> None:
    dataset, other = (ClassFolders(root, "train", noise, seed=number) for number in (1, 2))
    states = random.getstate(), torch.get_rng_state()
    first = dataset[SampleIndex(3, 5, 5)][0]
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    random.seed(9)
    torch.manual_seed(9)
    assert torch.equal(dataset[SampleIndex(3, 5, 5)][0], first)
    for changed in (dataset[SampleIndex(4, 5, 5)], dataset[SampleIndex(3, 6, 6)], other[SampleIndex(3, 5, 5)]):
        assert not torch.equal(changed[0], first)


def test_folders_that_are_refused(root: Path, tmp_path: Path) -> None:
    """Others are in `test_cli.py`."""
    (root / "train" / "text").mkdir()
    (root / "train" / "text" / "a.txt").write_text("no image")
    with pytest.raises(InputError, match=r"data/train: 1 of 4 class folders hold no images: text$"):
        ClassFolders(root, "train", to_float)
    (tmp_path / "flat" / "train").mkdir(parents=True)
    with pytest.raises(InputError, match=r"flat/train: has no class folders"):
        ClassFolders(tmp_path / "flat", "train", to_float)


@pytest.mark.parametrize("world", [1, 4])
def test_every_validation_image_is_read_once(root: Path, world: int) -> None:
    dataset = ClassFolders(root, "val", lambda image: torch.zeros(1))
    read = [name for rank in range(world) for b in open_val_loader(dataset, 2, 0, World(rank, world)) for name in b.ids]
    assert sorted(read) == sorted(f"{c}/{i}.png" for c in ("blue", "green", "red") for i in range(3))


def test_training_batches_are_shuffled_and_divided(root: Path) -> None:
    config = parse_classifier_config({"optimizer": {"batch_size": 8}, "training": {"num_workers": 0}})
    dataset = ClassFolders(root, "train", lambda image: torch.zeros(1))
    loaders, orders = [open_train_loader(dataset, config, World(rank, 2)) for rank in (0, 1)], []
    for epoch in (0, 1):
        for loader in loaders:
            index_sampler(loader).set_epoch(epoch)
        batches = [batch.ids for loader in loaders for batch in loader]
        assert {len(b) for b in batches} == {4}
        orders.append([name for batch in batches for name in batch])
        assert set(orders[epoch]) == {f"{c}/{i}.png" for c in ("blue", "green", "red") for i in range(4)}
    assert orders[0] != orders[1]
