"""The classes of the tiny data sets of these tests."""

from seamseg.formats.metadata import Metadata


def classes() -> Metadata:
    return Metadata(2, 1, ["road", "sky", "car"], [(128, 64, 128), (70, 130, 180), (0, 0, 142)], [7, 23, 26], [])
