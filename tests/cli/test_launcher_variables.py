"""Rank and size from the launcher's variables agree with `seamseg.utils.distributed`."""

import pytest

from seamseg.utils.distributed import _environment
from seamseg.utils.launcher import is_main_process, process_count

ADDRESS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "count", "is_main"),
    [
        ({}, 1, True),
        (ADDRESS, 1, True),
        ({"RANK": "0", "WORLD_SIZE": "1", **ADDRESS}, 1, True),
        ({"RANK": "3", "WORLD_SIZE": "1", **ADDRESS}, 1, True),
        ({"RANK": "0", "WORLD_SIZE": "2", **ADDRESS}, 2, True),
        ({"RANK": "1", "WORLD_SIZE": "2", **ADDRESS}, 2, False),
    ],
)
def test_agrees_with_distributed(monkeypatch, variables, count, is_main):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ADDRESS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rank, size, _ = _environment()
    assert (size, rank == 0) == (count, is_main) == (process_count(), is_main_process())
