"""Images of things: deterministic, by class, wholly inside and mostly visible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seamseg.maps.toy_city import generate_toy_things
from seamseg.maps.toy_city.labels import NAMES, THINGS
from seamseg.maps.toy_city.writer import cut_out
from seamseg.utils.errors import InputError


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.png")}


def test_the_same_seed_gives_the_same_images(tmp_path: Path) -> None:
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


def test_settings_are_not_mixed(tmp_path: Path) -> None:
    generate_toy_things(tmp_path / "a", train=1, val=1, workers=1)
    with pytest.raises(InputError, match="choose another folder"):
        generate_toy_things(tmp_path / "a", train=2, val=1, workers=1)
    with pytest.raises(InputError, match="toy things: `train=0`: must be from 1 to 500000"):
        generate_toy_things(tmp_path / "b", train=0, val=1)


def box(top: int, left: int, height: int, width: int) -> np.ndarray:
    mask = np.zeros((60, 80), bool)
    mask[top : top + height, left : left + width] = True
    return mask


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((10, 20, 40, 20), np.s_[8:52, 8:52]),  # a square of 1.1 times the longer side
        ((1, 1, 40, 20), np.s_[:44, :44]),  # moved inside the image
        ((20, 2, 20, 70), np.s_[:60, :77]),  # as far as the image goes
        ((0, 20, 40, 20), None),  # touches the border
        ((10, 20, 19, 19), None),  # small
    ],
)
def test_what_is_cut_out(place: tuple[int, int, int, int], expected: tuple[slice, slice] | None) -> None:
    photo = np.arange(60 * 80 * 3, dtype=np.uint32).astype(np.uint8).reshape(60, 80, 3)
    image = cut_out(photo, box(*place))
    assert (image is None) == (expected is None)
    if image is not None:
        assert np.array_equal(image, photo[expected])
        # mostly hidden
        assert cut_out(photo, box(*place) & ~box(place[0] + 1, place[1] + 1, place[2] - 2, place[3] - 2)) is None
