"""The PNG of a mask is the same as the full image."""

from io import BytesIO

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seamseg.maps.formats.cityscapes.instance_files import mask_png


@settings(max_examples=60)
@given(st.data())
def test_pillow_reads_it(data):
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    rows, columns = data.draw(st.integers(0, height)), data.draw(st.integers(0, width))
    y, x = data.draw(st.integers(0, height - rows)), data.draw(st.integers(0, width - columns))
    crop = np.random.default_rng(data.draw(st.integers(0, 99))).random((rows, columns)) < 0.6
    expected = np.zeros((height, width), np.uint8)
    expected[y : y + rows, x : x + columns][crop] = 255
    with Image.open(BytesIO(mask_png(crop, (y, x), (height, width)))) as picture:
        assert picture.mode == "L"
        assert np.array_equal(np.array(picture), expected)


def test_large_images_are_small_files():
    content = mask_png(np.ones((300, 500), bool), (511, 700), (2448, 3264))
    with Image.open(BytesIO(content)) as picture:
        assert np.count_nonzero(np.array(picture)[511:811, 700:1200] == 255) == np.count_nonzero(picture) == 300 * 500
    assert len(content) < 20_000
