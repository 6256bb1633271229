"""Reading of report pages."""

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
    found: dict[str, list[Any]] = {}
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        found.setdefault(kind, []).append(json.loads(text))
    return found


def decode_index_map(text: str, height: int, width: int, segments: int) -> np.ndarray:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8 if segments <= 255 else "<u2")
    return np.bitwise_xor.accumulate(raw.reshape(height, width), axis=0)
