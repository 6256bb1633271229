"""Reading classifiers and classes takes time in proportion to the input, see `tests/test_linear_time.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from test_linear_time import Case, check, refused

from seamseg.contrib.classification.config import parse_classifier_config
from seamseg.contrib.foreign.class_lists import identify


def unknown_keys(n: int, folder: Path) -> Callable[[], object]:
    content = {f"key_{k}": 1 for k in range(n)}

    def read() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse_classifier_config(content)

    return read


def names_of_classes(n: int, folder: Path) -> Callable[[], object]:
    names = ["road", ",".join(f"name {k}" for k in range(n))]
    return lambda: refused(lambda: identify(names, "model"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [Case(unknown_keys, 1 << 8, 1 << 16), Case(names_of_classes, 1 << 9, 1 << 17)], ids=["keys", "names"]
)
def test_linear_time(tmp_path, case):
    check(case, tmp_path)
