"""Images of things: deterministic, by class, wholly inside and mostly visible."""

import pytest
from PIL import Image

from seamseg.maps.toy_city import generate_toy_things
from seamseg.maps.toy_city.labels import NAMES, THINGS
from seamseg.utils.errors import InputError


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.png")}


def test_the_same_seed_gives_the_same_images(tmp_path):
    counts = generate_toy_things(tmp_path / "a", train=6, val=2, workers=1)
    again = generate_toy_things(tmp_path / "b", train=6, val=2, workers=2)
    images = contents(tmp_path / "a")
    assert counts == again
    assert images == contents(tmp_path / "b")
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
