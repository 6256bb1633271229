"""Photos of any size, kind and orientation, in tiles if requested or if the memory does not suffice."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.predictors import as_input, predictor_of
from support.tile_scenes import STUFF, SceneNet, scene
from torch.nn import functional

import seamseg
from seamseg.data.input_size import InputSize
from seamseg.formats.id_png import read_id_png
from seamseg.formats.metadata import Metadata
from seamseg.inference import images as photos
from seamseg.inference.options import Augmentation, Thresholds
from seamseg.inference.predictor import Predictor
from seamseg.inference.tiling import tiles as tiles_module
from seamseg.inference.tiling.tiles import Tiling
from seamseg.utils.errors import SeamsegError

METADATA = Metadata(STUFF, 1, ["a", "b", "c", "d"], [(i, i, i) for i in range(4)], list(range(4)), [])
SMALL = (100, 100, 120, 140)
LARGE = (150, 20, 280, 380)


def predictor(net=None, tiling=Tiling(), shortest=None):  # noqa: B008  # frozen
    return predictor_of(net or SceneNet(), METADATA, Thresholds(0.5, 0.5, 0), InputSize(shortest), tiling)


@pytest.fixture
def rgb():
    return scene((300, 400), [SMALL, LARGE], np.random.default_rng(0))


def categories(result):
    table = np.full(max(s.id for s in result.segments) + 1, 255)
    for segment in result.segments:
        table[segment.id] = segment.category
    return table[result.id_map]


def test_tiles_change_nothing_for_a_local_network(rgb):
    whole = predictor().predict(rgb)
    for tiles, overlap in ((128, None), (160, 80), (128, 32)):
        tiled = predictor().predict(rgb, tiles, overlap)
        stuff = (categories(whole) != 3) & (categories(tiled) != 3)
        assert np.array_equal(categories(tiled)[stuff], categories(whole)[stuff])
        small, large = sorted((s for s in tiled.segments if s.isthing), key=lambda s: s.area)
        assert small.box == SMALL
        assert stuff.mean() > 0.5
        assert large.box == pytest.approx(LARGE, abs=5)  # from the coarse view


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
    ("kind", "tiles", "room"),
    [("instance_seg", 128, None), ("instance_seg", "auto", 30000), ("detection", 160, 20000)],
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
    assert tiled.prediction.semantic is None
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
        if segment is None:
            return found
        logits = torch.stack([functional.one_hot(p.semantic, STUFF).permute(2, 0, 1) * 9 for p in found])
        segment(SimpleNamespace(levels=logits, valid_sizes=[p.size for p in found]))
        return [replace(p, semantic=None) for p in found]

    def classify(self, features):
        return features.levels


@pytest.mark.parametrize(("tiles", "room"), [(128, None), (192, 30000)])
def test_augmentation_of_each_tile(rgb, tiles, room):
    """Mirrored views of a tile are mapped back to the image, also if memory requires smaller tiles."""
    model = predictor(LogitsNet(room=room))
    model.network.augmentation = Augmentation.parse("flip")
    result, plain = model.predict(rgb, tiles), predictor().predict(rgb)
    assert len(model.network.net.sizes) > 8
    assert max(h * w for h, w in model.network.net.sizes) <= (room or tiles**2)
    assert model.network.net.sizes[::2] == model.network.net.sizes[1::2], "each tile has two views"
    stuff = (categories(result) != 3) & (categories(plain) != 3)
    assert np.array_equal(categories(result)[stuff], categories(plain)[stuff])
    assert stuff.mean() > 0.5
    small, large = sorted((s for s in result.segments if s.isthing), key=lambda s: s.area)
    assert small.box == SMALL
    assert large.box == pytest.approx(LARGE, abs=5)


@pytest.mark.slow
def test_a_photo_above_the_limit_is_tiled(monkeypatch):
    monkeypatch.setattr(tiles_module, "AUTO_LIMIT", 300 * 400)
    monkeypatch.setattr(tiles_module, "AUTO_SIDE", 128)
    model = predictor()
    for size in ((300, 400), (300, 401), (1, 300000)):
        result = model.predict(scene(size, [], np.random.default_rng(0)))
        assert result.size == size
        assert (result.id_map > 0).all()
    assert model.network.net.sizes[0] == (300, 400)
    assert max(h * w for h, w in model.network.net.sizes[1:]) <= 128**2


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (20000, 2), (33, 77)])
@pytest.mark.parametrize("tiles", ["auto", 128])
def test_extreme_sizes(size, tiles):
    rgb = scene(size, [], np.random.default_rng(0))
    result = predictor().predict(rgb, tiles)
    assert result.size == size
    assert (result.id_map > 0).all()
    result = predictor(ObjectNet("instance_seg")).predict(rgb, tiles)
    assert (result.size, len(result), result.draw().size) == (size, 0, size[::-1])


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(128, 256), st.integers(16500, 90000))
def test_too_little_memory_changes_nothing(height, width, side, room):
    """Whatever fits into the memory: the map is the same as with more memory."""
    rgb = scene((height, width), [], np.random.default_rng(height * width))
    net = SceneNet(room=room)
    for tiling in (Tiling(), Tiling(side)):
        result = predictor(net, tiling).predict(rgb)
        assert np.array_equal(categories(result), rgb[..., 0])
    assert all(h * w <= room for h, w in net.sizes)


def test_out_of_memory_is_reported_once(rgb, capsys):
    model = predictor(SceneNet(room=40000))
    results = [model.predict(rgb) for _ in range(2)]
    error = capsys.readouterr().err
    assert error.count("input of 400 x 300 pixels at once: it is processed in tiles of 173 pixels, and so are") == 1
    assert error.count("\n") == 1
    assert results[0].segments == results[1].segments
    # the first attempt with each image fails
    assert max(h * w for h, w in model.network.net.sizes) <= 173**2


def test_images_of_a_too_large_batch_are_processed_one_by_one(rgb, capsys):
    model = predictor(SceneNet(room=200000))
    predictions = model.raw([rgb] * 3)
    assert model.network.net.sizes == [(300, 400)] * 3
    assert len(predictions) == 3
    assert all(p.semantic.dtype == np.uint8 for p in predictions)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_memory_for_the_smallest_tiles_does_not_suffice(rgb):
    model = predictor(SceneNet(room=5000))
    start, smaller = "cpu: not enough memory for a network input of", "set a smaller `shortest_size`"
    for photo, tiles, words in (
        (rgb, "auto", f"{start} 400 x 300 pixels, not even in tiles of 128 pixels: {smaller}"),
        (rgb, "off", f"{start} 400 x 300 pixels: set `tiles=auto` or {smaller}"),
        (rgb[:70, :80], "auto", f"{start} 80 x 70 pixels: {smaller}"),
    ):
        with pytest.raises(SeamsegError) as caught:
            model.predict(photo, tiles=tiles)
        assert str(caught.value) == words
    # on a GPU the message also suggests the CPU
    gpu = SimpleNamespace(device=torch.device("cuda:1"), on_gpu=True)
    error = SimpleNamespace(network=gpu, input_size=InputSize())
    said = str(Predictor._out_of_memory(error, np.empty((70, 80, 3))))
    assert said == f"cuda:1: not enough memory for a network input of 80 x 70 pixels: {smaller} or use `device=cpu`"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation(tmp_path, orientation):
    """The map is that of the upright photo."""
    rgb = scene((150, 260), [(20, 30, 40, 50)], np.random.default_rng(1))
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(rgb).save(tmp_path / "photo.png", exif=exif)
    upright = {
        1: rgb,
        2: rgb[:, ::-1],
        3: rgb[::-1, ::-1],
        4: rgb[::-1],
        5: rgb.transpose(1, 0, 2),
        6: np.rot90(rgb, -1),
        7: rgb[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(rgb),
    }[orientation]
    expected = np.where(upright[..., 2] > 0, 3, upright[..., 0])
    for tiles in ("auto", 128):
        result = predictor().predict(tmp_path / "photo.png", tiles)
        assert result.size == upright.shape[:2]
        assert np.array_equal(categories(result), expected)


GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(GREY),
        Image.fromarray(GREY.astype(np.uint16) * 257),
        Image.fromarray(GREY.astype(np.int32)),
        Image.fromarray(GREY.astype(np.float32)),
        Image.fromarray(GREY).convert("LA"),
        Image.fromarray(GREY).convert("RGBA"),
        Image.fromarray(GREY).convert("P"),
        Image.fromarray(255 - np.dstack([GREY, GREY, GREY, GREY * 0 + 255])).convert("RGB"),
    ],
    ids=lambda image: image.mode,
)
def test_images_of_every_kind(tmp_path, image):
    """A PIL image and the same image in a file have equal inputs; 16 bits become 8 by scaling, not clipping."""
    image.save(tmp_path / "photo.tif")
    seen = inputs_of(image, tmp_path / "photo.tif")
    assert np.array_equal(seen[0], seen[1])
    assert len(np.unique(seen[0])) == 48


def test_cmyk_and_one_bit():
    seen = inputs_of(Image.new("CMYK", (8, 6), (0, 255, 255, 0)), Image.new("1", (8, 6), 1))
    assert seen[0].mean((0, 1)).tolist() == [255, 0, 0]
    assert seen[1].min() == 255


def inputs_of(*images):
    """What the network sees of images of 8 x 6 pixels."""
    seen = []
    model = predictor()
    model.raw = lambda images, tiling: seen.append(images[0]) or [SceneNet()._see(as_input(images[0] * 0)).on_cpu()]
    assert [model.predict(image).size for image in images] == [(6, 8)] * len(images)
    return seen


def test_photos_for_tiles_are_batches_of_their_own(rgb):
    whole = photos.network_input(Image.fromarray(rgb[:128, :128]), InputSize())
    assert np.array_equal(whole, rgb[:128, :128])
    batches = list(
        photos.equal_size_batches([whole, rgb, whole, rgb], 2, lambda image: image.shape, tiling=Tiling(128))
    )
    assert [[len(image) for image in batch] for batch in batches] == [[300], [128, 128], [300]]
    assert len(list(photos.equal_size_batches([rgb, rgb], 2, lambda image: image.shape, tiling=Tiling()))) == 1


@pytest.mark.usefixtures("narrow")
def test_command(micro_run, micro, tmp_path, seamseg_main):
    """Large photos in tiles together with small ones in batches."""
    (tmp_path / "photos").mkdir()
    street = Image.open(micro / "img" / "val0.png")
    for name, size in (("a", (300, 200)), ("b", (96, 64)), ("c", (96, 64)), ("d", (64, 96))):
        street.resize(size).save(tmp_path / "photos" / f"{name}.png")
    words = ("--device", "cpu", "--format", "coco,raw,overlay", "--shortest-size", "200", "--longest-max-size", "400")
    for out, more in (("whole", ()), ("tiles", ("--tiles", "192", "--tile-overlap", "64", "--batch-size", "2"))):
        assert seamseg_main("predict", micro_run, tmp_path / "photos", tmp_path / out, *words, *more) == 0
    content = json.loads((tmp_path / "tiles" / "panoptic.json").read_text())
    assert [(i["width"], i["height"]) for i in content["images"]] == [(300, 200), (96, 64), (96, 64), (64, 96)]
    one, other = (read_id_png(tmp_path / out / "panoptic" / "a.png") for out in ("whole", "tiles"))
    assert one.shape == other.shape == (200, 300)
    raw = torch.load(tmp_path / "tiles" / "a.pth.tar", weights_only=True)
    assert raw["sem_pred"].shape == (200, 300)
    assert raw["sem_pred"].dtype == torch.uint8
    model = seamseg.load(micro_run, device="cpu", shortest_size=200, longest_max_size=400, tiles=192, tile_overlap=64)
    result = model.predict(tmp_path / "photos" / "a.png")
    crowds = [s.id for s in result.segments if s.iscrowd]  # the COCO format leaves them void
    assert np.array_equal((result.id_map > 0) & ~np.isin(result.id_map, crowds), other > 0)
