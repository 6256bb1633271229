"""The memory of conversions of large images."""

import json
import sys

import numpy as np
import pytest
from PIL import Image
from support.memory import peak_of, seamseg

SIZE = (11700, 7900)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by /proc")
@pytest.mark.parametrize("kind", ["folders", "instances"])
def test_memory_of_a_folder_of_the_largest_images(tmp_path, kind):
    for name in ("photos", "labels", "numbers"):
        (tmp_path / name).mkdir()
    width, height = SIZE
    labels = np.tile(np.arange(width // 64 + 1, dtype=np.uint16).repeat(64)[:width], (height, 1))
    for name in "abcd":
        Image.new("RGB", SIZE, (90, 120, 30)).save(tmp_path / "photos" / f"{name}.jpg")
        Image.fromarray((labels % 3).astype(np.uint8)).save(tmp_path / "labels" / f"{name}.png", compress_level=1)
        Image.fromarray(labels).save(tmp_path / "numbers" / f"{name}.png", compress_level=1)
    classes = [{"id": k, "name": f"class {k}", "isthing": int(k == 2)} for k in range(3)]
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    whole = [[0, 0, width, 0, width, height, 0, height]]
    content = {
        "images": [{"id": name, "file_name": f"{name}.jpg"} for name in "abcd"],
        "annotations": [{"image_id": name, "category_id": 2, "segmentation": whole} for name in "aabbccdd"],
        "categories": classes,
    }
    (tmp_path / "objects.json").write_text(json.dumps(content))
    given = {"folders": ("labels", "numbers"), "instances": ("objects.json", "labels")}[kind]
    sources = [tmp_path / name for name in ("photos", *given)]
    command = ["prepare", kind, tmp_path / "out", "--split", "train", *sources, "--classes", tmp_path / "classes.json"]
    code, peak, _ = peak_of(seamseg(*command, "--workers", 1))
    assert code == 0
    assert peak < 1.6e9  # below its estimate
