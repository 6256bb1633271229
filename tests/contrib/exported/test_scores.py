"""`seamseg evaluate` of exported networks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.onnx_scenes import BOXES, CLASSES, record, write_network

from seamseg.maps.formats.metadata import ImageInfo, write_metadata
from seamseg.maps.panoptic_map import VOID

SIZE = (64, 128)


@pytest.fixture
def exported_data(tmp_path):
    """An image whose red value is the class of the pixel, with the objects that the network finds."""
    for folder in ("img", "msk", "lst"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    cat = [VOID, 0, 1, 3, 2]
    ids = np.ones(SIZE, np.uint8)
    ids[:20] = 2
    for number, (y0, x0, y1, x1) in enumerate(BOXES.astype(int).tolist(), 3):
        ids[y0:y1, x0 if number == 3 else (x0 + x1) // 2 : x1] = number
    pixels = np.zeros((*SIZE, 3), np.uint8)
    pixels[..., 0] = np.array(cat)[ids]
    Image.fromarray(pixels).save(tmp_path / "data/img/a.png")
    Image.fromarray(ids).save(tmp_path / "data/msk/a.png")
    (tmp_path / "data/lst/val.txt").write_text("a\n")
    write_metadata(tmp_path / "data/metadata.bin", replace(CLASSES, images=[ImageInfo("a", cat, SIZE, [0] * len(cat))]))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("kind", "size"), [("panoptic", None), ("panoptic", SIZE), ("semantic", None), ("detection", SIZE)]
)
def test_scores_of_exported_networks(exported_data, tmp_path, seamseg_main, capsys, kind, size):
    model = write_network(tmp_path / "net.onnx", record(kind, size))
    words = ("--split", "val", "--json", tmp_path / "scores.json", "--quiet", "--set", "dataloader.num_workers=0")
    words += ("--set", f"dataloader.shortest_size={SIZE[0]}")
    if kind == "panoptic":
        words += ("--set", "general.min_stuff_area=0")
    assert seamseg_main("evaluate", model, exported_data, *words) == 0, capsys.readouterr().err
    scores = json.loads((tmp_path / "scores.json").read_text())
    # one of two boxes is twice as wide as its object, of which the mask leaves out a half
    wanted = {"panoptic": {"PQ": 1, "mIoU": 1}, "semantic": {"mIoU": 1, "accuracy": 1}, "detection": {"det_map": 0.55}}
    assert {name: scores[name] for name in wanted[kind]} == pytest.approx(wanted[kind])
