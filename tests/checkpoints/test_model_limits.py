"""Models that would exhaust the memory are refused with a one-line error and little memory."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import umsgpack
from support.bombs import MIB, state_sizes, zeros_zip
from support.small_models import refusal, save_snapshot

from seamseg.checkpoints.bundle import load_built, open_model
from seamseg.checkpoints.snapshot import Snapshot
from seamseg.maps.formats.metadata import Metadata, metadata_header, parse_metadata
from seamseg.utils.errors import InputError

CLASSES = Metadata(2, 1, ["sky", "road", "car"], [(1, 2, 3), (4, 5, 6), (7, 8, 9)], [23, 7, 26])
PARTS = {
    "body": {"weight": torch.zeros(4)},
    "rpn_head": {"weight": torch.zeros(4)},
    "roi_head": {"roi_cls.weight": torch.zeros(2, 8), "roi_msk.weight": torch.zeros(1, 8)},
    "sem_head": {"conv_sem.weight": torch.zeros(3, 8)},
}


def write_snapshot(path: Path, **changes: Any) -> Path:
    content = {"config": "", "state_dict": PARTS, "training_meta": {}, "metadata": metadata_header(CLASSES)}
    save_snapshot(path, Snapshot(**{**content, **changes}))
    return path


def test_zips_of_zeros(tmp_path: Path) -> None:
    tar, ini = write_snapshot(tmp_path / "good.tar").read_bytes(), b"[general]\n"
    path = zeros_zip(tmp_path / "model.zip", {"config.ini": 2}, model__tar=tar)
    with pytest.raises(InputError, match="the limit of a configuration"):
        open_model(path)
    zeros_zip(path, {"model.tar": 48}, config__ini=ini)
    with pytest.raises(InputError, match="the limit is 50 times"):
        open_model(path)
    with pytest.raises(InputError, match=r"damaged or unreadable zip \(.* states a packed size of"):
        open_model(state_sizes(path, 48 * MIB, 5 * MIB))


def test_text_fields_with_other_types(tmp_path: Path) -> None:
    path = tmp_path / "model.pth.tar"
    deep: Any = ["x"]
    for _ in range(40):
        deep = [deep, deep]  # of 40 lists a text of a terabyte
    torch.save({"config": deep, "state_dict": PARTS}, path)
    assert refusal(path).endswith("its 'config' is not text but a list")
    write_snapshot(path, config="[general]\n", metadata={**metadata_header(CLASSES), "categories": [deep] * 3})
    with pytest.raises(InputError, match="not a metadata file: a category is a list, expected text"):
        open_model(path)


# --- metadata


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x91" * 5000, "byte 0x91 instead of the start of a map"),
        (b"\x81\xa4meta" + b"\x91" * 5000 + b"\0", "RecursionError"),
        (b"\x81\xa4meta\xdd\xff\xff\xff\xff", "InsufficientDataException"),
        (b"\x81\xa4meta\xdb\xff\xff\xff\xff", "an entry is larger than 256 KiB"),
        # empty lists, which take 56 bytes each in memory
        (b"\x81\xa6images\x91\xdd" + struct.pack(">I", 1 << 20) + b"\x90" * (1 << 20), "larger than 256 KiB"),
        (umsgpack.packb({"meta": {**metadata_header(CLASSES), "num_thing": 10**9}}), "must be 1 to 255"),
    ],
)
def test_odd_metadata(data: bytes, expected: str) -> None:
    with pytest.raises(InputError, match=rf"^m\.bin: .*{re.escape(expected)}"):
        parse_metadata(data, "m.bin")


# --- networks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[fpn]\nout_channels = 1000000000", "[fpn] out_channels = 1000000000: expected a value from 1 to 16384"),
        (f"[rpn]\nanchor_ratios = {(1,) * 1000}", "expected at most 64 values, got 1000"),
        (f"[rpn]\nanchor_ratios = {(1,) * 30000}", "...: expected at most 65536 characters, got 90000"),
        (f"[scheduler]\nparams = {'[' * 90}", "[scheduler] params = [[["),
        ('[body]\nout_channels = {"mod1": 10000000}', 'out_channels = {"mod1": 10000000}: expected at most 16384'),
    ],
)
def test_absurd_networks(tmp_path: Path, text: str, expected: str) -> None:
    path = write_snapshot(tmp_path / "model.pth.tar", config=text)
    with pytest.raises(InputError) as error:
        open_model(path)
    assert expected in str(error.value)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


def test_a_lack_of_memory_is_no_bad_input() -> None:
    def build() -> torch.nn.Module:
        with torch.device("cpu"):
            return torch.nn.Linear(10**8, 10**8)

    with pytest.raises(RuntimeError, match="allocate"):
        load_built(build, Snapshot("", {"body": {}}, {}), "model")
