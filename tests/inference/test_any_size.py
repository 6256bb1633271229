"""Photos of any size, kind and orientation, in tiles if requested or if the memory does not suffice."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.predictors import predictor_of
from support.tile_scenes import STUFF, SceneNet, scene
from torch.nn import functional

from seamseg.data.input_size import InputSize
from seamseg.formats.metadata import Metadata
from seamseg.inference import images as photos
from seamseg.inference.options import Augmentation, Thresholds
from seamseg.inference.tiling.tiles import Tiling

METADATA = Metadata(STUFF, 1, ["a", "b", "c", "d"], [(i, i, i) for i in range(4)], list(range(4)), [])
SMALL = (100, 100, 120, 140)
LARGE = (150, 20, 280, 380)


def predictor(net=None, tta=None):
    net = net or SceneNet()
    return predictor_of(net, METADATA, Thresholds(0.5, 0.5, 0), augmentation=Augmentation.parse(tta))


@pytest.fixture
def rgb():
    return scene((300, 400), [SMALL, LARGE], np.random.default_rng(0))


class ObjectNet(SceneNet):
    """Sees objects only: their boxes, and their masks for instance segmentation."""

    def __init__(self, kind, **options):
        super().__init__(**options)
        self.kind = kind

    def predict(self, images):
        masks = self.kind == "instance_seg"
        found = super().predict(images)
        return [replace(p, semantic=None, mask_logits=p.mask_logits if masks else None) for p in found]


@pytest.mark.parametrize(
    ("kind", "tiles", "room"), [("instance_seg", 128, None), ("detection", 160, 20000), ("instance_seg", "auto", 30000)]
)
def test_objects_in_tiles(rgb, kind, tiles, room):
    whole = predictor(ObjectNet(kind)).predict(rgb)
    assert sorted(d.box for d in whole) == [SMALL, LARGE]
    model = predictor(ObjectNet(kind, room=room))
    tiled = model.predict(rgb, tiles)
    assert len(model.network.net.sizes) > 2
    small, large = sorted(tiled, key=lambda d: d.area)
    assert small.box == SMALL
    assert large.box == pytest.approx(LARGE, abs=5)
    assert tiled.size == (300, 400)
    if kind == "detection":
        assert tiled.masks is None
    else:
        y0, x0, y1, x1 = SMALL
        assert small.mask[y0:y1, x0:x1].mean() > 0.9
        assert small.mask.sum() == small.mask[y0:y1, x0:x1].sum()


class LogitsNet(SceneNet):
    """Returns class logits, which test-time augmentation needs."""

    def predict(self, images, segment=None):
        found = super().predict(images)
        logits = torch.stack([functional.one_hot(p.semantic, STUFF).permute(2, 0, 1) * 9 for p in found])
        segment(SimpleNamespace(levels=logits, valid_sizes=[p.size for p in found]))
        return [replace(p, semantic=None) for p in found]

    def classify(self, features):
        return features.levels


@pytest.mark.parametrize(("tiles", "room"), [(128, None), (192, 30000)])
def test_augmentation_of_each_tile(rgb, tiles, room):
    model = predictor(LogitsNet(room=room), "flip")
    result, plain = model.predict(rgb, tiles), predictor().predict(rgb)
    sizes = model.network.net.sizes
    assert len(sizes) > 8
    assert max(h * w for h, w in sizes) <= (room or tiles**2)
    assert sizes[::2] == sizes[1::2], "each tile has two views"
    stuff = (result.classes != 3) & (plain.classes != 3)
    assert np.array_equal(result.classes[stuff], plain.classes[stuff])
    assert stuff.mean() > 0.5
    small, large = sorted((s for s in result.segments if s.isthing), key=lambda s: s.area)
    assert small.box == SMALL
    assert large.box == pytest.approx(LARGE, abs=5)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (20000, 2), (33, 77)])
@pytest.mark.parametrize("tiles", ["auto", 128])
def test_extreme_sizes(size, tiles):
    rgb = scene(size, [], np.random.default_rng(0))
    result = predictor().predict(rgb, tiles)
    assert result.size == size
    assert (result.id_map > 0).all()
    result = predictor(ObjectNet("instance_seg")).predict(rgb, tiles)
    assert (result.size, len(result), result.draw().size) == (size, 0, size[::-1])


def test_out_of_memory_is_reported_once(rgb, capsys):
    """And not if the images of a batch fit one by one."""
    model = predictor(SceneNet(room=200000))
    assert [p.semantic.dtype for p in model.raw([rgb] * 3)] == [np.uint8] * 3
    assert model.network.net.sizes == [(300, 400)] * 3
    assert capsys.readouterr().err == ""
    model = predictor(SceneNet(room=40000))
    results = [model.predict(rgb) for _ in range(2)]
    error = capsys.readouterr().err
    assert error.count("input of 400 x 300 pixels at once: it is processed in tiles of 173 pixels, and so are") == 1
    assert error.count("\n") == 1
    assert results[0].segments == results[1].segments
    # the first attempt with each image fails
    assert max(h * w for h, w in model.network.net.sizes) <= 173**2


def test_photos_for_tiles_are_batches_of_their_own(rgb):
    whole = photos.network_input(Image.fromarray(rgb[:128, :128]), InputSize())
    assert np.array_equal(whole, rgb[:128, :128])
    batches = photos.equal_size_batches([whole, rgb, whole, rgb], 2, lambda image: image.shape, tiling=Tiling(128))
    assert [[len(image) for image in batch] for batch in batches] == [[300], [128, 128], [300]]
