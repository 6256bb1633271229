"""Run-length encoding of all instances at once against pycocotools, instance by instance."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from support.tiny_dataset import classes

from seamseg.prepare.annotations import thing_annotations, write_coco_json

CAT, CROWD = [255, 2, 0, 2, 2, 1], [0, 0, 0, 1, 0, 0]
id_maps = hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 5))


@given(id_maps)
def test_equals_encoding_one_by_one(ids):
    found = thing_annotations(ids[None], CAT, CROWD, classes())
    expected = []
    for instance in (1, 3, 4):
        mask = np.asfortranarray(ids == instance, dtype=np.uint8)
        if mask.any():
            rle = coco_mask.encode(mask)
            expected.append(
                {
                    "category_id": 2,
                    "iscrowd": CROWD[instance],
                    "area": int(mask.sum()),
                    "bbox": coco_mask.toBbox(rle).tolist(),
                    "segmentation": {"size": list(ids.shape), "counts": rle["counts"].decode()},
                    "width": ids.shape[1],
                    "height": ids.shape[0],
                }
            )
    assert found == expected
    json.dumps(found)


def test_overlapping_layers():
    ids = np.zeros((2, 6, 7), np.uint16)
    ids[0, 1:5, 1:5] = 4
    ids[1, 2:3] = 1
    one, four = thing_annotations(ids, CAT, CROWD, classes())
    assert (one["area"], one["bbox"]) == (7, [0, 2, 7, 1])
    assert (four["area"], four["bbox"]) == (16, [1, 1, 4, 4])


@pytest.mark.parametrize("value", [0, 2, 4])
def test_image_of_one_id(value):
    found = thing_annotations(np.full((1, 3, 4), value, np.uint8), CAT, CROWD, classes())
    assert [(a["area"], a["bbox"]) for a in found] == ([(12, [0, 0, 4, 3])] if value == 4 else [])


def test_file_is_read_by_pycocotools(tmp_path, capsys):
    ids = np.zeros((1, 5, 8), np.uint8)
    ids[0, 1:3, 2:6], ids[0, 4] = 1, 3
    annotations = partial(thing_annotations, ids, CAT, CROWD, classes())
    images = [{"id": n, "file_name": f"{n}.png", "size": [5, 8], "annotations": annotations()} for n in "ab"]
    path = tmp_path / "train.json"
    write_coco_json(path, classes(), images)
    coco = COCO(str(path))
    assert sorted(coco.anns) == [1, 2, 3, 4]  # from 1: pycocotools takes a match with annotation 0 for none
    assert coco.cats == {2: {"id": 2, "name": "car"}}
    assert coco.imgs["b"] == {"id": "b", "file_name": "b.png", "width": 8, "height": 5}
    assert [a["iscrowd"] for a in coco.anns.values()] == [0, 1, 0, 1]
    assert np.array_equal(coco.annToMask(coco.anns[3]), ids[0] == 1)
    write_coco_json(path, classes(), [])
    assert COCO(str(path)).anns == {}
