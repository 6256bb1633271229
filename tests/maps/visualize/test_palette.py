"""Colours of classes."""

import numpy as np
import pytest

from seamseg.maps.visualize.palette import class_colors, voc_color


def nearest(colors):
    """The smallest of the largest differences in a channel of two colours."""
    values = np.array(colors, int)
    distance = np.abs(values[:, None] - values).max(-1)
    return distance[~np.eye(len(values), dtype=bool)].min()


@pytest.mark.parametrize("given", [(130, 10, 1), (0, 0, 0), [90, 160, 40]])
def test_chosen_colors_keep_clear_of_given_ones(given):
    found = class_colors([None, given, None, None, None, None])
    assert found[1] == tuple(given)
    assert nearest(found) >= 64


def test_many_colors_stay_distinct():
    given = [(8 * k, 255 - 4 * k, 16 * (k % 16)) for k in range(32)]
    found = class_colors([*given, *[None] * 223])
    assert nearest(found[20:]) >= 16
    assert class_colors([]) == []
    assert class_colors([None] * 255) == [voc_color(k) for k in range(1, 256)], "without given ones the palette"
