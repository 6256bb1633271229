"""Frames of the real data sets, which may not be redistributed.

Set SEAMSEG_REAL_DATA to a folder that holds `vistas_sample/v1.2/` (config.json, training/), `published_model/` (the
metadata.bin of the published model), `coco_panoptic_sample/`, `cityscapes_sample/` and `pennfudan/` (PNGImages/,
PedMasks/); otherwise they are skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from seamseg.data.folder import DatasetFolder
from seamseg.formats.metadata import read_metadata
from seamseg.prepare.archives import read_map
from seamseg.prepare.check import check_dataset
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.convert import ConversionOptions
from seamseg.prepare.label_folders import prepare_folders
from seamseg.prepare.panoptic import prepare_panoptic
from seamseg.prepare.vistas import prepare_vistas

pytestmark = pytest.mark.slow

ROOT = Path(os.environ.get("SEAMSEG_REAL_DATA", "/nonexistent"))


def sample(name: str) -> Path:
    if not (ROOT / name).is_dir():
        pytest.skip(f"no {name} in SEAMSEG_REAL_DATA")
    return ROOT / name


def test_vistas_frame_matches_the_published_metadata(tmp_path: Path) -> None:
    done = prepare_vistas(sample("vistas_sample") / "v1.2", tmp_path, options=ConversionOptions(1))
    published = read_metadata(sample("published_model") / "metadata.bin")
    assert done.metadata.without_images() == published.without_images()
    image = done.metadata.images[0]
    assert image == next(i for i in published.images if i.id == image.id)
    assert check_dataset(tmp_path, 1).errors == []


def test_coco_areas_match_the_json(tmp_path: Path) -> None:
    root = sample("coco_panoptic_sample")
    path = root / "panoptic_examples.json"
    source = (str(root / "input_images"), str(path), str(root / "panoptic_examples"))
    prepare_panoptic(tmp_path, {"val": source}, ConversionOptions(1))
    content = json.loads(path.read_text())
    things = {c["id"]: c["name"] for c in content["categories"] if c["isthing"]}
    folder = DatasetFolder(tmp_path)
    m = folder.metadata
    assert (m.num_stuff, m.num_thing) == (53, 80)
    for annotation in content["annotations"]:
        info = folder.info(annotation["file_name"].removesuffix(".png"))
        counts = np.bincount(folder.read_mask(info.id).ravel())
        found = sorted(
            (m.categories[c], crowd, int(n)) for c, crowd, n in zip(info.cat, info.iscrowd, counts) if m.is_thing(c)
        )
        assert found == sorted(
            (things[s["category_id"]], s["iscrowd"], s["area"])
            for s in annotation["segments_info"]
            if s["category_id"] in things
        )
    assert check_dataset(tmp_path, 1).errors == []


def test_cityscapes_frames_have_no_errors(tmp_path: Path) -> None:
    done = prepare_cityscapes(sample("cityscapes_sample"), tmp_path, options=ConversionOptions(1))
    assert done.splits == {"train": 6, "val": 1}
    assert check_dataset(tmp_path, 1).errors == []


def test_pedestrians_are_those_of_the_masks(tmp_path: Path) -> None:
    root = sample("pennfudan")
    (tmp_path / "c.ini").write_text("[background]\nid = 0\nkind = stuff\n[pedestrian]\nid = 1\nkind = thing\n")
    splits = {"train": (str(root / "PNGImages"), str(root / "PedMasks"))}
    prepare_folders(tmp_path / "out", splits, tmp_path / "c.ini", suffixes=("", "_mask", ""))
    folder = DatasetFolder(tmp_path / "out")
    for image in folder.metadata.images:
        # the same numbers: background comes first, then the pedestrians in their order
        numbers = np.unique(read_map(root / "PedMasks" / f"{image.id}_mask.png"), return_inverse=True)[1]
        assert (folder.read_mask(image.id)[0].ravel() == numbers.ravel() + 1).all()
        assert image.cat == [255, 0, *[1] * numbers.max()]
    assert check_dataset(tmp_path / "out", 1).problems == []
