"""A head of the user with ground truth that is read from a folder of the data set."""

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.components import DEPTH, code_of_page, component_file
from support.interruptions import loss_lines

import seamseg
from seamseg.config import load_config
from seamseg.data.loader import index_sampler
from seamseg.maps.folder import DatasetFolder
from seamseg.structures import Batch
from seamseg.training.prefetch import prepare_batch
from seamseg.training.run import run_training
from seamseg.training.setup import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

AUGMENTED = (
    "dataloader.random_flip=yes",
    "dataloader.random_scale=(0.5, 2)",
    "dataloader.crop_size=(48, 56)",
)

file, _ = component_file("my_depth.py", DEPTH)


@pytest.fixture
def data(tmp_path, micro):
    """A data set whose maps state image and segment of each pixel: `200 * number + 2 * id`, 0 for void."""
    root = tmp_path / "data"
    shutil.copytree(micro, root)
    (root / "depth").mkdir()
    folder = DatasetFolder(root)
    for number, info in enumerate(folder.metadata.images):
        ids = folder.read_mask(info.id)[0]
        stored = np.where(ids > 0, 200 * (number + 1) + 2 * ids, 0).astype(np.uint16)
        Image.fromarray(stored).save(root / "depth" / f"{info.id}.png")
    return root


@pytest.fixture
def options(component_options, file, data):
    return lambda run, *more, **others: replace(component_options(file, run, *AUGMENTED, *more, **others), data=data)


def check(batch: Batch, data) -> tuple[int, int]:
    """Compare a map with the masks, pixel by pixel; return the numbers of labelled and of void pixels."""
    images = DatasetFolder(data).metadata.images
    numbers = {info.id: number + 1 for number, info in enumerate(images)}
    labelled = void = 0
    for name, masks, categories, depth in zip(batch.ids, batch.masks, batch.categories, batch.maps["depth"]):
        assert depth.shape == (1, *masks.shape[1:])
        assert depth.dtype == torch.float32
        assert ((depth[0] == -1) == (masks[0] == 0)).all()
        void += int((masks[0] == 0).sum())
        for segment in range(1, len(categories)):
            found = torch.unique(depth[0][masks[0] == segment]).tolist()
            if not found:
                continue
            (value,) = found
            number, of_image = divmod(int(value), 100)
            assert images[number - 1].cat[of_image] == categories[segment]
            assert number == numbers[name]
            labelled += int((masks[0] == segment).sum())
    return labelled, void


@pytest.mark.parametrize("on_device", ["no", "yes"])
def test_each_pixel_has_the_value_of_its_segment(options, data, tmp_path, on_device):
    run_training(options("run", f"dataloader.device_transforms={on_device}", "dataloader.num_workers=1"))
    assert all("  depth " in line for line in loss_lines(tmp_path / "run"))
    batches = sys.modules["my_depth"].BATCHES
    assert len(batches) == 8
    labelled, void = (sum(counts) for counts in zip(*(check(batch, data) for batch in batches)))
    assert labelled > 100
    assert void > 0


def batches_of(options, data, micro_config, *overrides, epoch=0):
    config = load_config(micro_config, None, (*options("run").overrides, *overrides))
    loader = open_loader(config, data, "micro.ini", World())
    index_sampler(loader).set_epoch(epoch)
    return [prepare_batch(batch, config.dataloader) for batch in loader]


def test_workers_and_the_device_change_nothing(options, data, micro, micro_config):
    plain = batches_of(options, data, micro_config)
    for overrides in (("dataloader.num_workers=2",), ("dataloader.device_transforms=yes",)):
        for one, other in zip(plain, batches_of(options, data, micro_config, *overrides), strict=True):
            assert torch.equal(one.maps["depth"][0], other.maps["depth"][0])
            assert torch.equal(one.masks[0], other.masks[0])
    other = batches_of(options, data, micro_config, epoch=1)
    assert any(not torch.equal(a.maps["depth"][0], b.maps["depth"][0]) for a, b in zip(plain, other))
    # no other target changes with them
    without = load_config(micro_config, None, ("dataloader.train_batch_size=1", *AUGMENTED))
    for one, other in zip(open_loader(without, micro, "micro.ini", World()), plain, strict=True):
        assert one.maps == {}
        assert torch.equal(one.images[0], other.images[0])
        assert torch.equal(one.masks[0], other.masks[0])


def test_missing_maps(options, data, file):
    (data / "depth" / "train0.png").unlink()
    with pytest.raises(InputError, match=r"data/depth/train0 \(map 'depth'\): no such map \(.png, .npy\)") as caught:
        run_training(options("run"))
    assert "\n" not in str(caught.value)
    shutil.rmtree(data / "depth")
    with pytest.raises(InputError, match=r"data/depth: no such folder; a head or metric reads"):
        run_training(options("other"))


def test_declarations_that_differ(options, file):
    other = DEPTH[DEPTH.index("@head") :].replace('"depth_loss"', '"far_loss"').replace('@head("depth"', '@head("far"')
    file.write_text(DEPTH + other.replace("class DepthHead", "class FarHead").replace("factor=0.5", "factor=1"))
    with pytest.raises(InputError, match=r"head far .*reads\['depth'\] differs"):
        run_training(options("run"))


def test_the_metric_of_the_page(options, data, file, tmp_path):
    file.write_text(DEPTH + code_of_page("extend_data.md", '@metric("depth_error")'))
    overrides = ("general.eval_mode=depth_error", "scheduler.epochs=1")
    scores = run_training(options("run", *overrides)).validation
    error = scores.metrics["depth_error"]
    assert 0 < error < 10
    assert scores.selection.value == error
    given = {"general.components": file}
    assert seamseg.evaluate(tmp_path / "run", data, device="cpu", overrides=given).metrics["depth_error"] > 0
