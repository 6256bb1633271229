"""The metadata of exported networks: its text, and what a damaged one is refused for."""

import json
from dataclasses import replace

import numpy as np
import pytest

from seamseg.maps.formats.exported import FORMAT, ExportedMetadata
from seamseg.maps.formats.metadata import ImageInfo, Metadata
from seamseg.utils.errors import InputError

CLASSES = Metadata(1, 2, ["sky", "car", "bus"], [(1, 2, 3), (4, 5, 6), (7, 8, 9)], [23, 26, 28])


def exported(**changes):
    values = {
        "kind": "panoptic",
        "config": "[general]\n",
        "metadata": CLASSES,
        "size": (512, 1024),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.4),
        "thresholds": {"score_threshold": 0.5, "min_stuff_area": 4096},
        "licence": "CC BY-NC-SA 4.0",
    }
    return ExportedMetadata(**{**values, **changes})


@pytest.mark.parametrize(("size", "classes"), [((512, 1024), None), (None, None), ((512, 1024), (2, 0))])
def test_a_text_is_read_back(size, classes):
    sides = None if size else (64, 4096)
    extra = {"quantization": {"scheme": "static"}}
    written = exported(size=size, sides=sides, query_classes=classes, multiple=32, extra=extra)
    assert ExportedMetadata.from_json(written.to_json(), "a.onnx") == written
    with_images = replace(written, metadata=replace(CLASSES, images=[ImageInfo("a", [255], (2, 2), [0])]))
    assert ExportedMetadata.from_json(with_images.to_json(), "a.onnx") == written, "the images are not stored"
    names = Metadata(0, 1000, [str(number) for number in range(1000)], [], [])
    classifier = exported(kind="classification", metadata=names, thresholds={})
    assert ExportedMetadata.from_json(classifier.to_json(), "a.onnx") == classifier


def test_padding():
    fixed, free = exported(), exported(size=None, multiple=128, sides=(64, 1000))
    assert fixed.padded_size((300, 400)) == (512, 1024)
    assert free.padded_size((300, 30)) == (384, 128)
    assert (fixed.max_size, free.max_size) == ((512, 1024), (896, 896))
    image = np.random.default_rng(0).integers(1, 256, (300, 100, 3), dtype=np.uint8)
    inputs = free.inputs(image)
    assert inputs["size"].tolist() == [300, 100]
    assert np.array_equal(inputs["image"][0, :, :300, :100].transpose(1, 2, 0), image)
    assert inputs["image"].shape == (1, 3, 384, 128)
    assert np.count_nonzero(inputs["image"]) == image.size, "padded with 0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 7}, "damaged"),
        ({"metadata": {"num_stuff": 1, "palette": [1]}}, "the key 'categories' is missing"),
        ({"maps": {"../flow": {}}}, "'../flow': a name has lower-case letters"),
        ({"maps": {"boxes": {}}}, "boxes: the name has another meaning"),
        ({"maps": {"flow": {"channels": "2"}}}, "channels must be 1 to 1024"),
        ({"maps": {"flow": {"scale": float("nan")}}}, "must be numbers"),
        ({"format": FORMAT + 1}, f"of format {FORMAT + 1}, this version reads"),
        *((text, "export") for text in ("", "[]", "{", '{"format": 1}', "[" * 100_000)),
    ],
)
def test_a_wrong_text_or_value_is_one_line(changes, message):
    text = changes if isinstance(changes, str) else json.dumps(json.loads(exported().to_json()) | changes)
    with pytest.raises(InputError, match=message) as error:
        ExportedMetadata.from_json(text, "a.onnx")
    assert str(error.value).startswith("a.onnx: ")
    assert "\n" not in str(error.value)
