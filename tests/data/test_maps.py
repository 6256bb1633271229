"""Maps that heads read: from stored values to those of an augmented image."""

import io
from random import Random
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.sections import train_transform
from torch.nn import functional

from seamseg.data.input_size import InputSize, reference_size
from seamseg.data.maps import MapValues, map_values, scale_and_crop
from seamseg.data.transforms import AugmentationParams
from seamseg.inference.options import Tiling
from seamseg.inference.predictor import Predictor
from seamseg.maps.folder import ReadMap
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.maps.images import open_map
from seamseg.maps.predictions import InferenceNetwork, MapFormat, Prediction
from seamseg.models.custom import declared_outputs
from seamseg.results import Thresholds, result_of
from seamseg.structures import DeferredTransform
from seamseg.utils.errors import InputError

SIZE = (9, 14)


def values(spec, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(spec.channels, *SIZE))
    return MapValues(drawn.astype(np.float32), spec)


def test_stored_values_become_units():
    stored = np.array([[0, 256], [512, 65535]], np.uint16)
    found = map_values(stored, ReadMap("depth", factor=1 / 256, offset=-1, fill=-5), (2, 2), "name")
    assert found.filled().tolist() == [[[-5, 0], [1, 65535 / 256 - 1]]]
    every = map_values(stored, ReadMap("depth", void=None), (2, 2), "name")
    assert every.filled().tolist() == [stored.astype(float).tolist()]
    flow = np.array([[[1, np.nan]], [[np.inf, 3]]], np.float32)
    found = map_values(flow, ReadMap("flow", channels=2, void=None, fill=9), (1, 2), "name")
    assert found.filled().tolist() == [[[1, 9]], [[9, 3]]]


def test_a_missing_map_is_an_error_unless_it_is_optional():
    with pytest.raises(InputError, match=r"city/depth/a: no such map"):
        map_values(None, ReadMap("depth"), (2, 2), "city/depth/a")
    assert (map_values(None, ReadMap("depth", optional=True, fill=7), (2, 3), "name").filled() == 7).all()
    with pytest.raises(InputError, match=r"name: the map is float64 of 1 x 3 x 2, expected numbers of 1 x 2 x 3"):
        map_values(np.zeros((3, 2)), ReadMap("depth"), (2, 3), "name")


@pytest.mark.parametrize("size", [(9, 14), (13, 20), (5, 8)])
def test_bilinear_values_are_those_of_torch(size):
    source = values(ReadMap("flow", channels=2, resize="bilinear"))
    whole = functional.interpolate(torch.from_numpy(source.values)[None], size, mode="bilinear")[0].numpy()
    y, x, h, w = window = (1, 2, 3, 5)
    found = scale_and_crop(source, size, window, False, 1).values
    assert np.allclose(found, whole[:, y : y + h, x : x + w], atol=1e-6)
    if size == SIZE:
        assert np.array_equal(found, source.values[:, y : y + h, x : x + w])


def test_values_are_never_mixed_with_missing_ones():
    source = values(ReadMap("depth", resize="bilinear"))
    source.values[:] = 3
    source.values[0, 4, 6] = np.nan
    found = scale_and_crop(source, (18, 28), (0, 0, 18, 28), False, 1).values
    absent = np.isnan(found)
    assert absent.any()
    assert (found[~absent] == 3).all()
    nearest = np.isnan(np.repeat(np.repeat(source.values, 2, 1), 2, 2))
    assert (absent >= nearest).all()
    assert absent.sum() == 16, "the pixels with a share of the missing one"
    same = scale_and_crop(source, SIZE, (0, 0, *SIZE), False, 1).values
    assert np.isnan(same).sum() == 1


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_nearest_values_are_those_of_the_mask(flip, on_device):
    rng = np.random.default_rng(1)
    mask = rng.integers(0, 5, (1, *SIZE), np.int32)
    transform = train_transform(6, None, device_transforms=on_device, crop_size=(5, 6))
    for size in ((6, 9), (7, 11), (13, 20), (9, 14)):
        params = AugmentationParams(size, (1, 2, 5, 6), DeferredTransform(flip))
        read = map_values(mask[0], ReadMap("ids", void=None), SIZE, "name")
        image = Image.fromarray(rng.integers(0, 255, (*SIZE, 3), np.uint8))
        info = ImageInfo("a", [255, 0, 1, 2, 3], SIZE, [0] * 5)
        item = transform(image, mask, info, params, {"ids": read})
        ids = item["msk"].flip(-1) if flip and on_device else item["msk"]
        taken = item["maps"]["ids"][0].long()
        kept = [0, *sorted(set(taken.flatten().tolist()) - {0})]
        assert torch.equal(torch.tensor(kept)[ids[0].long()], taken)


def test_mirror_and_scale_change_values():
    spec = ReadMap("offset", channels=2, mirror=(-1, 1), scale="multiply", fill=5)
    source = values(spec)
    source.values[:, 0, 0] = np.nan
    found = scale_and_crop(source, (18, 28), (0, 0, 18, 28), True, 1.5).mirrored().filled()
    # lengths are those of the input, distances are relative to an input of scale 1
    want = source.values[..., ::-1].repeat(2, 1).repeat(2, 2) * 2 * np.array([-1, 1], np.float32)[:, None, None]
    want[:, :2, -2:] = 5
    assert np.allclose(found, want)
    depth = values(ReadMap("depth", scale="divide"))
    assert np.allclose(scale_and_crop(depth, SIZE, (0, 0, *SIZE), False, 2).values, depth.values / 2)


def test_the_scale_is_relative_to_that_of_validation():
    params = train_transform(32, None, random_scale=(1.5, 1.5)).sample_params((64, 96), Random(0))
    assert params.size == (48, 72)
    assert params.scale == 1.5
    assert train_transform(32, None).sample_params((64, 96), Random(0)).scale == 1


class Oracle(InferenceNetwork):
    kind, result_type, device = "semantic", result_of("semantic"), "cpu"
    map_formats = MappingProxyType({"length": MapFormat(values="multiply"), "depth": MapFormat(values="divide")})

    def __init__(self, native, size, shortest, longest):
        transform = train_transform(shortest, longest)
        scale = size[1] / transform.reference.scaled(native)[1]
        params = AugmentationParams(size, (0, 0, *size), DeferredTransform(), scale)
        stored = {
            name: MapValues(np.full((1, *native), 8, np.float32), ReadMap(name, scale=spec.values))
            for name, spec in self.map_formats.items()
        }
        image, mask = Image.new("RGB", native[::-1]), np.zeros((1, *native), np.int32)
        item = transform(image, mask, ImageInfo("a", [255], native, [0]), params, stored)
        self.targets = {name: float(values[0, 0, 0]) for name, values in item["maps"].items()}

    def run(self, images, least_score=0.0):
        nothing = np.zeros(0, np.float32)
        return [
            Prediction(nothing.reshape(0, 4), nothing, nothing, None, np.zeros(size, np.uint8), size, None, maps)
            for size in (image.shape[:2] for image in images)
            for maps in [{k: np.full(size, v, np.float32) for k, v in self.targets.items()}]
        ]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(20, 90), st.integers(20, 700)),
    st.integers(20, 90),
    st.integers(90, 300),
    st.sampled_from(
        [InputSize(30, 400), InputSize(longest_size=333), InputSize(80, 90), InputSize(60, 900, None, (64, 64))]
    ),
    st.sampled_from([Tiling("off"), Tiling(256)]),
)
def test_a_perfect_head_predicts_the_units_of_the_files(native, shortest, longest, at, tiling):
    size = at.of(native)
    oracle = Oracle(native, size, shortest, longest)
    predictor = Predictor(
        oracle,
        None,
        at,
        Thresholds(),
        tiling,
        reference=reference_size(shortest, longest),  # type: ignore[arg-type]
    )
    found = predictor.in_units(predictor.raw([np.zeros((*size, 3), np.uint8)])[0], native)
    for name, values in found.maps.items():
        assert values.shape == size
        assert np.allclose(values, 8, rtol=1e-5), name


def test_an_output_changes_as_its_ground_truth():
    reads = {"flow": ReadMap("flow", 2, mirror=(-1, 1), scale="multiply"), "depth": ReadMap("depth", scale="divide")}
    outputs = {"flow": MapFormat(2), "depth": MapFormat(values="none", bits=16), "other": MapFormat()}
    found = declared_outputs(SimpleNamespace(reads=reads, outputs=outputs))
    assert found == {**outputs, "flow": MapFormat(2, mirror=(-1, 1), values="multiply")}


def saved(array, **given):
    out = io.BytesIO()
    np.save(out, array, **given)
    return out.getvalue()


def test_files_of_maps(tmp_path):
    deep = np.arange(6, dtype=np.uint16).reshape(2, 3) * 10000
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert np.array_equal(open_map(tmp_path / "a.png"), deep)
    rgb = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(rgb).save(tmp_path / "b.png")
    assert np.array_equal(open_map(tmp_path / "b.png"), rgb.transpose(2, 0, 1))
    flow = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)
    for order in "CF":
        assert np.array_equal(open_map("c.npy", saved(np.asarray(flow, order=order))), flow)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (saved(np.array([{}]), allow_pickle=True), "Object arrays cannot be loaded"),
        (saved(np.zeros((3, 4)))[:-8], "truncated"),
        (b"no array", "not an array file"),
    ],
)
def test_broken_arrays_are_one_line(data, message):
    with pytest.raises(InputError, match=message) as caught:
        open_map("folder/x.npy", data)
    assert str(caught.value).startswith("folder/x.npy: ")
    assert "\n" not in str(caught.value)


def test_wrong_declarations():
    for options in ({"resize": "cubic"}, {"scale": "up"}, {"channels": 2, "mirror": (1,)}, {"channels": 0}):
        with pytest.raises(ValueError, match="ReadMap: "):
            ReadMap("depth", **options)
