"""The toy city: scenes are deterministic, complete and consistent, with valid labels."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image
from support.source_files import tree

from seamseg.maps.toy_city import generate_toy_city, generate_toy_things, labels, render_scene
from seamseg.maps.toy_city.labels import NAMES, THINGS
from seamseg.utils.errors import InputError

SIZE, SMALL = (128, 256), (64, 128)
SCENES = 60


@pytest.fixture(scope="module")
def scenes():
    return [render_scene(0, "train", i, SIZE) for i in range(SCENES)]


def _category(ids):
    return np.where(ids >= 1000, ids // 1000, ids)


def test_a_scene_depends_on_its_arguments_alone():
    photo, ids = render_scene(3, "val", 7, SIZE)
    again_photo, again_ids = render_scene(3, "val", 7, SIZE)
    assert np.array_equal(photo, again_photo)
    assert np.array_equal(ids, again_ids)
    for other in ((4, "val", 7), (3, "train", 7), (3, "val", 8)):
        different, _ = render_scene(*other, SIZE)
        assert different.shape != photo.shape or not np.array_equal(different, photo)


def test_every_class_and_special_case_occurs(scenes):
    present = Counter()
    for _, ids in scenes:
        present.update(np.unique(_category(ids)).tolist())
    for category in (*labels.STUFF, *labels.THINGS):
        assert present[category] >= SCENES // 5, labels.NAMES[category]
    for void in labels.VOIDS:
        assert present[void] > 0, labels.NAMES[void]
    groups = sum(any(v in labels.THINGS for v in np.unique(ids).tolist()) for _, ids in scenes)
    assert groups >= 3
    things = [np.isin(_category(ids), labels.THINGS).any() for _, ids in scenes]
    assert 1 <= things.count(False) <= SCENES // 4
    portraits = sum(ids.shape == SIZE[::-1] for _, ids in scenes)
    assert SCENES // 12 <= portraits <= SCENES // 3


def test_raw_cityscapes_tree_with_any_number_of_workers(tmp_path):
    ids = generate_toy_city(tmp_path / "one", train=3, val=2, seed=5, size=SMALL, workers=1)
    assert ids == generate_toy_city(tmp_path / "two", train=3, val=2, seed=5, size=SMALL, workers=2)
    assert len(set(ids)) == 5
    assert ids[0] == "toyville_000000_000019"
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert len(one) == 15 + 1
    assert one == two
    truth = tmp_path / "one" / "gtFine" / "train" / "toyville" / f"{ids[0]}_gtFine"
    instances = np.asarray(Image.open(f"{truth}_instanceIds.png")).astype(int)
    classes = np.asarray(Image.open(f"{truth}_labelIds.png"))
    photo, rendered = render_scene(5, "train", 0, SMALL)
    assert np.array_equal(instances, rendered)
    assert np.array_equal(classes, _category(instances))
    picture = tmp_path / "one" / "leftImg8bit" / "train" / "toyville" / f"{ids[0]}_leftImg8bit.png"
    assert np.array_equal(np.asarray(Image.open(picture)), photo)


def test_sizes_and_counts_are_checked(tmp_path):
    with pytest.raises(InputError, match="from 0 to 500000"):
        generate_toy_city(tmp_path / "x", train=-1)
    for wrong in ((10, 512), (256, 2**20)):
        with pytest.raises(InputError, match="from 64 to 8192 pixels"):
            generate_toy_city(tmp_path / "x", train=1, size=wrong)


def test_the_same_seed_gives_the_same_images(tmp_path):
    counts = generate_toy_things(tmp_path / "a", train=6, val=2, workers=1)
    again = generate_toy_things(tmp_path / "b", train=6, val=2, workers=2)
    images, others = ({k: v for k, v in tree(tmp_path / n).items() if k.endswith(".png")} for n in "ab")
    assert counts == again
    assert images == others
    assert len(images) == sum(sum(classes.values()) for classes in counts.values()) > 8
    names = {NAMES[category] for category in THINGS}
    for name in images:
        split, label, _ = name.split("/")
        assert split in ("train", "val")
        assert label in names
        image = Image.open(tmp_path / "a" / name)
        assert image.mode == "RGB"
        assert max(image.size) >= 22


def test_settings_are_not_mixed(tmp_path):
    generate_toy_things(tmp_path / "a", train=1, val=1, workers=1)
    with pytest.raises(InputError, match="choose another folder"):
        generate_toy_things(tmp_path / "a", train=2, val=1, workers=1)
    with pytest.raises(InputError, match="toy things: `train=0`: must be from 1 to 500000"):
        generate_toy_things(tmp_path / "b", train=0, val=1)
