"""Any map of classes and instances is unchanged by every converter and by a merge."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.source_files import panoptic_png, photo, picture, write_json

from seamseg.data.folder import DatasetFolder
from seamseg.prepare.check import check_dataset
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.convert import ConversionOptions
from seamseg.prepare.label_folders import prepare_folders
from seamseg.prepare.panoptic import prepare_panoptic
from seamseg.prepare.vistas import prepare_vistas

NAMES = ["road", "sky", "car", "person"]
THINGS = {2, 3}
NONE = 4
"""The void label."""

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
label_maps = sizes.flatmap(
    lambda size: st.tuples(
        hnp.arrays(np.int64, size, elements=st.integers(0, NONE)),
        hnp.arrays(np.int64, size, elements=st.sampled_from([0, 1, 2, 77, 255])),
    )
)
ONE = ConversionOptions(workers=1)


def expected(labels, numbers, crowd_of_zero):
    """Return class, crowd flag and pixels of each segment."""
    found = set()
    for label in range(NONE):
        of_label = labels == label
        parts = [of_label & (numbers == n) for n in np.unique(numbers[of_label])] if label in THINGS else [of_label]
        kept = [part for part in parts if part.any()]
        for part in kept:
            crowd = label in THINGS and crowd_of_zero and numbers[part][0] == 0
            found.add((NAMES[label], int(crowd), part.tobytes()))
    return found


def read_back(root):
    folder = DatasetFolder(root)
    (info,) = folder.metadata.images
    mask = folder.read_mask(info.id)[0]
    assert sorted(np.union1d(mask, 0).tolist()) == list(range(len(info.cat)))
    return {
        (folder.metadata.categories[c], crowd, (mask == k).tobytes())
        for k, (c, crowd) in enumerate(zip(info.cat, info.iscrowd))
        if k
    }


def vistas(root, labels, numbers):
    entries = [
        {"name": name, "instances": k in THINGS, "evaluate": k != NONE, "color": [k, k, k]}
        for k, name in enumerate([*NAMES, "nothing"])
    ]
    write_json(root / "config.json", {"labels": entries})
    photo(root / "training" / "images" / "a.png", labels.shape)
    picture(root / "training" / "instances" / "a.png", labels * 256 + numbers, np.uint16)
    prepare_vistas(root, root / "out", options=ONE)


def cityscapes(root, labels, numbers):
    values = np.array([7, 23, 26, 24, 0])[labels]
    values = np.where(np.isin(labels, list(THINGS)) & (numbers > 0), values * 1000 + numbers, values)
    photo(root / "leftImg8bit" / "train" / "x" / "a_leftImg8bit.png", labels.shape)
    picture(root / "gtFine" / "train" / "x" / "a_gtFine_instanceIds.png", values, np.uint16)
    prepare_cityscapes(root, root / "out", ["train"], ConversionOptions(1))


def folders(root, labels, numbers):
    photo(root / "p" / "a.jpg", labels.shape)
    (root / "c.ini").write_text(
        "".join(f"[{n}]\nid = {k}\nkind = {'thing' if k in THINGS else 'stuff'}\n" for k, n in enumerate(NAMES))
        + f"[void]\nids = {NONE}\n"
    )
    picture(root / "l" / "a.png", labels)
    picture(root / "i" / "a.png", numbers)
    prepare_folders(root / "out", {"train": tuple(str(root / k) for k in "pli")}, root / "c.ini", options=ONE)


def panoptic(root, labels, numbers):
    ids = np.where(labels == NONE, 0, 1 + labels * 100_000 + numbers * 70)
    described = [
        {"id": int(i), "category_id": int((i - 1) // 100_000), "iscrowd": int((i - 1) % 100_000 == 0)}
        for i in np.unique(ids[ids > 0])
    ]
    categories = [{"id": k, "name": name, "isthing": int(k in THINGS)} for k, name in enumerate(NAMES)]
    annotations = [{"image_id": 1, "file_name": "a.png", "segments_info": described}]
    content = {"categories": categories, "images": [{"id": 1, "file_name": "a.jpg"}], "annotations": annotations}
    photo(root / "p" / "a.jpg", labels.shape)
    panoptic_png(root / "m" / "a.png", ids)
    source = (str(root / "p"), str(write_json(root / "a.json", content)), str(root / "m"))
    prepare_panoptic(root / "out", {"train": source}, ONE)


@pytest.mark.parametrize("convert", [vistas, cityscapes, folders, panoptic])
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(label_maps)
def test_converted_and_read_back(convert, maps):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        convert(root, *maps)
        wanted = expected(*maps, crowd_of_zero=convert is not vistas)
        assert read_back(root / "out") == wanted
        assert check_dataset(root / "out", 1).errors == []
