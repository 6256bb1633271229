"""The PNG of a mask is the same as the full image."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seamseg.formats.cityscapes.instance_files import mask_png


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


@pytest.mark.parametrize("size", [(1024, 2048), (2448, 3264)])
def test_checksums_of_large_images(size):
    import struct
    import zlib

    content = mask_png(np.ones((300, 500), bool), (511, 700), size)
    position, data = 8, b""
    while position < len(content):
        (length,) = struct.unpack_from(">I", content, position)
        kind, body = content[position + 4 : position + 8], content[position + 8 : position + 8 + length]
        assert struct.unpack_from(">I", content, position + 8 + length)[0] == zlib.crc32(kind + body)
        data += body if kind == b"IDAT" else b""
        position += length + 12
    # zlib checks the Adler-32 and that nothing is missing
    raw = zlib.decompress(data)
    assert len(raw) == size[0] * (size[1] + 1)
    assert raw.count(255) == 300 * 500
    assert len(content) < 20_000
