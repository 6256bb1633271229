"""Models that would exhaust the memory are refused with a one-line error and little memory."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import umsgpack
from support.bombs import MIB, refusals, state_sizes, zeros_zip
from support.small_snapshots import refusal, save_snapshot

from seamseg.checkpoints.bundle import load_built, open_model
from seamseg.checkpoints.snapshot import Snapshot, load_tensors
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


def test_usual_contents_still_load(tmp_path: Path) -> None:
    content = {
        "x": torch.zeros(3, 4).t(),
        "p": torch.nn.Parameter(torch.ones(2)),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "numbers": [np.float64(1.5), np.int64(3), np.arange(6).reshape(2, 3), 1 << 70, -1, 2.5, None, True],
        "plain": {"set": {1, 2}, "bytes": b"\xff\0", "size": torch.Size([1, 2]), "dtype": torch.float16},
        "device": torch.device("cpu"),
        "empty": torch.zeros(0, 5),
        "expanded": torch.ones(3, 1).expand(3, 4),
        "windows": torch.arange(6.0).unfold(0, 3, 1),
        "bytearray": [bytearray(b"a\xff"), bytearray()],
        "keys": [{(1, 2): 3, 1j: 4}, OrderedDict([(str(i), i) for i in range(5000)]), Counter("abca"), {5: 6}],
    }
    types = torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn
    for old in (True, False):
        if not old:  # torch cannot load them from its old format
            content["types"] = [torch.arange(5).to(dtype)[1:] for dtype in types]
        torch.save(content, tmp_path / "x.pth", _use_new_zipfile_serialization=not old)
        found = load_tensors(tmp_path / "x.pth", "x")
        assert str(found) == str(content)


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
        (b"\x82\xa1a\1\xa1a\1", "the key 'a' is not text or duplicate"),
        # lists as keys can have equal hashes
        (b"\x81\xa4meta\xde\1\0", "a map of 256 keys, at most 255 are supported"),
        (b"\x81\xa6images\x91\x81\xa1a\xdf\0\1\0\0", "a map of 65536 keys, at most 255 are supported"),
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
        ('[body]\nbody_params = {"classes": 1000000000}', "body_params: classes 1000000000 is above the limit"),
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


_HUGE_BODIES = {
    "wider": (
        "[rpn]\nhidden_channels = 16384\n[roi]\nroi_size = (28, 28)\nfc_channels = 9000",
        "does not fit this network",
    ),
    "channels": (
        '[body]\nbody = resnext50\nbody_params = {"channels": [3000000000, 3000000000, 64], "groups": 1}\n',
        "the network of its configuration cannot be built",
    ),
    "heads": ("[roi]\nfc_channels = 65536\nroi_size = (128, 128)", "does not fit this network"),
    "semantic": ("[general]\nkind = semantic\n[sem]\nhidden_channels = 7000", "does not fit this network"),
    "timm": (
        '[body]\nbody = timm:test_convnext\nbody_params = {"dims": [24, 32, 48, 6000]}',
        "does not fit this network",
    ),
    "timm_image": (
        '[body]\nbody = timm:maxvit_tiny_tf_224\nbody_params = {"img_size": 16384}',
        "img_size 16384 is above the limit of 4096",
    ),
}
_HUGE_CLASSIFIERS = {
    "wider": ({"arch": "resnet50", "params": {"width": 10**5}}, "does not fit this network"),
    "channels": ({"arch": "resnext50", "params": {"channels": [2**31, 2**31, 2**31]}}, "cannot be built"),
    "classes": ({"arch": "resnet50", "classes": 10**6, "params": {"width": 10**4}}, "does not fit this network"),
    "more_classes": ({"arch": "resnet50", "classes": 10**9}, "network.classes = 1000000000"),
}


def test_a_lack_of_memory_is_no_bad_input() -> None:
    def build() -> torch.nn.Module:
        with torch.device("cpu"):
            return torch.nn.Linear(10**8, 10**8)

    with pytest.raises(RuntimeError, match="allocate"):
        load_built(build, Snapshot("", {"body": {}}, {}), "model")


@pytest.mark.slow
def test_huge_networks_take_neither_memory_nor_time(tmp_path: Path) -> None:
    """They are built without memory for their weights, and compared with the file."""
    expected, expressions = [], []
    semantic = {part: {"weight": torch.zeros(3)} for part in ("body", "head", "cls")}
    for name, (text, message) in _HUGE_BODIES.items():
        parts = semantic if name == "semantic" else PARTS
        path = write_snapshot(tmp_path / f"{name}.pth.tar", config=text, state_dict=parts)
        recipe = "seamseg.contrib.recipes.timm" if name.startswith("timm") else ()
        expressions.append(f"timed(lambda: seamseg.load({str(path)!r}, device='cpu', components={recipe!r}))")
        expected.append(message)
    checkpoint = tmp_path / "weights.pth.tar"
    torch.save({"state_dict": {"mod1.bn1.weight": torch.zeros(64)}}, checkpoint)
    for name, (network, message) in _HUGE_CLASSIFIERS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"network": network}))
        expressions.append(
            f"timed(lambda: seamseg.classifier({str(tmp_path / name)!r} + '.json', {str(checkpoint)!r}))"
        )
        expected.append(message)
    setup = """
import time, torch, seamseg, seamseg.inference.predictor
def timed(call):
    begin = time.thread_time()
    try:
        return call()
    except InputError as error:
        raise InputError(f"{time.thread_time() - begin:.0f} s {error}")
"""
    found = refusals(setup, expressions[1], expressions)
    for (message, memory), part in zip(found, expected, strict=True):
        seconds, _, line = message.partition(" s ")
        assert part in line, message
        assert "\n" not in line
        assert len(line) < 500
        assert int(seconds) <= 10, message
        assert memory < 200, message
