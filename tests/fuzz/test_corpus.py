"""The kept inputs of the fuzzer: what it found, and files that reach most branches of the readers."""

import warnings

import pytest

from fuzz.targets import CORPUS, TARGETS, attempt, corpus, write_files


@pytest.mark.parametrize("name", TARGETS)
def test_inputs(name, tmp_path):
    write_files(tmp_path)
    inputs = corpus(name)
    assert inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key, data in inputs.items():
            try:
                attempt(name, data, tmp_path)
            except Exception as error:
                pytest.fail(f"{name}, {key}: {type(error).__name__}: {error}")


def test_no_other_inputs():
    assert {path.name for path in CORPUS.iterdir()} == {f"{name}.zip" for name in TARGETS}
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 200_000
