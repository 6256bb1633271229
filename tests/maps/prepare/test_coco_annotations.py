"""Run-length encoding of all instances at once against pycocotools, instance by instance."""

import json
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from support.source_files import classes

from seamseg.maps.idmaps.id_runs import runs_by_id
from seamseg.maps.prepare.annotations import decode_rle, thing_annotations, write_coco_json
from seamseg.maps.prepare.coco_instances import decode_segmentation, stack_things
from seamseg.maps.prepare.writer import SourceFrame

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


def mask_of(runs, size):
    mask = np.zeros(size[0] * size[1], bool)
    for start, length in zip(*runs):
        mask[start : start + length] = True
    return mask.reshape(size[::-1]).T


FRAME = SourceFrame("a", Path("a.jpg"), Path("a.json"), "a.jpg")
masks = hnp.arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40)))
corner = st.floats(-30, 60).map(lambda v: round(v, 2))
polygon = st.lists(st.tuples(corner, corner), min_size=3, max_size=6).map(lambda c: [v for pair in c for v in pair])


@given(masks)
def test_rle_is_decoded_as_by_pycocotools(mask):
    rle = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    flat = mask.T.ravel()
    plain = [*([0] if flat[0] else []), *(len(list(run)) for _, run in groupby(flat))]
    for counts in (rle["counts"], rle["counts"].decode(), plain):
        assert np.array_equal(mask_of(decode_rle(counts, mask.size), mask.shape), mask)


@given(st.lists(polygon, max_size=40), st.tuples(st.integers(4, 40), st.integers(4, 40)))
def test_polygons_are_decoded_as_by_pycocotools(polygons, size):
    found = mask_of(decode_segmentation(polygons, size, "a"), size)
    expected = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, *size))) if polygons else np.zeros(size)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "counts", [b"P", b"\xff", b"0" * 3 + b"o", b"Po" * 9 + b"0", [-1, 2], [3, 98], [1 << 62] * 4, ["a"], "\u20ac"]
)
def test_broken_rle(counts):
    with pytest.raises(ValueError, match=r"\S"):
        decode_rle(counts, 100)


@given(st.lists(st.tuples(masks.map(lambda m: np.pad(m, ((0, 40), (0, 40)))[:9, :8]), st.integers(0, 1)), max_size=9))
def test_objects_go_to_the_first_layer_that_is_free(objects):
    things = [(runs_by_id(m.view(np.uint8).T).get(1, ([], [])), k, crowd) for k, (m, crowd) in enumerate(objects)]
    things = [((np.array(runs[0], int), np.array(runs[1], int)), k, crowd) for runs, k, crowd in things]
    found = stack_things(things, (9, 8), FRAME, np.zeros(72, np.uint8), lambda value: (255, 0), classes())
    layers = []
    for k in sorted(range(len(objects)), key=lambda k: (objects[k][1], objects[k][0].sum())):
        mask = objects[k][0]
        if mask.any():
            free = next((layer for layer in layers if not layer[mask].any()), None)
            if free is None:
                layers.append(free := np.zeros((9, 8), int))
            free[mask] = k + 1
    layers = np.array(layers or [np.zeros((9, 8), int)])
    assert np.array_equal(np.array([0, *(c + 1 for c in found.cat[1:])])[found.ids], layers)


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
