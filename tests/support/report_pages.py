"""Reads back what a report page holds."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = re.compile(r'<script type="application/json" class="(\w+)">(.*?)</script>', re.S)


def blocks(page: Path) -> dict[str, list[Any]]:
    """The JSON blocks of a page by their class."""
    found: dict[str, list[Any]] = {}
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        found.setdefault(kind, []).append(json.loads(text))
    return found


def unpack(text: str, height: int, width: int, segments: int) -> np.ndarray:
    """An index map, `height x width`."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8 if segments <= 255 else "<u2")
    return np.bitwise_xor.accumulate(raw.reshape(height, width), axis=0)
