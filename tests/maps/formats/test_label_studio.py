"""Brush regions of Label Studio: bytes of its own encoder are read, and ours have the documented fields."""

import numpy as np
import pytest
from support.source_files import brush

from seamseg.maps.formats.label_studio import decode_brush

OFFICIAL = [
    (
        [".......", "..####.", "..#.##.", "..####.", "......."],
        [0, 0, 0, 140, 57, 27, 254, 35, 0, 191, 255, 108, 2, 63, 248, 192, 39, 255, 182, 1, 127, 255, 15, 128, 0],
    )
]
"""Masks, and what `mask2rle` of label-studio-converter 0.0.59 makes of them."""


@pytest.mark.parametrize(("rows", "data"), OFFICIAL)
def test_bytes_of_the_official_encoder(rows, data):
    found = decode_brush(bytes(data), (len(rows), len(rows[0])))
    assert found.tolist() == [[c == "#" for c in row] for row in rows]


def test_values_one_by_one():
    """A run of literal values, which encoders use for noise: bit 0, the length, then the values."""
    bits = f"{8:032b}{7:05b}" + "0010" * 4 + "000" + f"{7:03b}" + "".join(f"{v:08b}" for v in (9, 9, 9, 0, 1, 1, 1, 7))
    data = int(bits + "0" * (-len(bits) % 8), 2).to_bytes((len(bits) + 7) // 8, "big")
    assert decode_brush(data, (1, 2)).tolist() == [[False, True]]


@pytest.mark.parametrize("size", [(1, 1), (3, 17), (40, 29), (1, 16500), (300, 200)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_our_bytes_are_read_back(size, share):
    mask = np.random.default_rng(3).random(size) < share
    mask[: size[0] // 2] = share > 0
    data = brush(mask)
    assert all(0 <= value < 256 for value in data)
    assert int.from_bytes(bytes(data[:4]), "big") == 4 * mask.size
    assert np.array_equal(decode_brush(bytes(data), size), mask)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d[:6], "no header"),
        (lambda d: d[:-4], "truncated or broken"),
        (lambda d: d[:8], "truncated or broken"),
        (lambda d: b"\xff" + d[1:], "values of 8 bits, not four bytes for each of 7 x 5 pixels"),
        (lambda d: d[:4] + b"\xff" + d[5:], "values of 32 bits"),
    ],
)
def test_broken_bytes(change, reason):
    with pytest.raises(ValueError, match=reason):
        decode_brush(change(bytes(OFFICIAL[0][1])), (5, 7))
