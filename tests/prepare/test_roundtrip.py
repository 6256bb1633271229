"""Any map of classes and instances is unchanged by every converter."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.sharded_sources import SIZE, SOURCES

from seamseg.data.folder import DatasetFolder
from seamseg.prepare.check import check_dataset


def read_back(root):
    """Return class, crowd flag and pixels of each segment."""
    folder = DatasetFolder(root)
    (info,) = folder.metadata.images
    mask = folder.read_mask(info.id)[0]
    assert sorted(np.union1d(mask, 0).tolist()) == list(range(len(info.cat)))
    names = [folder.metadata.categories[c] for c in info.cat[1:]]
    return {(name, info.iscrowd[k], (mask == k).tobytes()) for k, name in enumerate(names, 1)}


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(hnp.arrays(np.int64, SIZE, elements=st.integers(0, 2)))
def test_converted_and_read_back(source, numbers):
    """0 is stuff, other numbers are those of things."""
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "raw"), Path(folder, "out")
        source.finish(root, [source.write(root, "a", (numbers > 0).astype(np.int64), numbers)])
        source.convert(root, out)
        wanted = {("car" if k else "road", 0, (numbers == k).tobytes()) for k in np.unique(numbers)}
        assert read_back(out) == wanted
        assert check_dataset(out, 1).errors == []
