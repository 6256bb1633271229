"""The memory of conversions of large images."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SIZE = (11700, 7900)


def family(pid):
    """A process and all that it has started."""
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += family(int(child))
    return found


def memory(pid):
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):  # shared pages count once
                return int(line.split()[1]) << 10
    return 0


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
    words = [sys.executable, "-m", "seamseg", *map(str, command), "--workers", "1"]
    peak, ends = 0, time.monotonic() + 600
    with subprocess.Popen(words) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(memory, family(process.pid))))
            assert time.monotonic() < ends, "it takes too long"
            time.sleep(0.02)
    assert process.returncode == 0
    assert peak < 1.6e9  # below its estimate
