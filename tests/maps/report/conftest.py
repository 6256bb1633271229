"""One evaluation for many tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.report_scenes import write_evaluation

NASTY = {
    26: '</script><script>document.title="taken"</script>',
    24: 'a "person" & <b>män</b> \u2028 \U0001f697 {{data}}',
}
"""Names of classes that must stay text."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs on the same ten scenes, with awkward class names."""
    root = tmp_path_factory.mktemp("report")
    first, second = (write_evaluation(root, 10, (96, 192), seed, NASTY) for seed in (0, 1))
    return first, second
