"""Tasks of Label Studio with brush regions: a mask for each object, run-length encoded.

A mask is encoded as the RGBA values of its pixels, row by row, all four 255 on the object. The bits of the encoding
are: 32 for the number of values, 5 for the bits of a value - 1, and four times 4 for the bits of a length - 1, of which
there are four sizes. Then follow runs: a bit 1, two bits for the size of the length, the length - 1, and the value; or,
with a bit 0, as many values as the length. The last byte is padded with zeros.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.id_runs import runs_by_id
from seamseg.maps.panoptic_map import PanopticResult

CONFIG = "label_config.xml"
TASKS = "tasks"
FROM_NAME, TO_NAME = "label", "image"

_CHANNELS = 4
_HEADER_BITS = 32 + 5 + 4 * 4
_LENGTH_BITS = (6, 8, 10, 16)
_LONGEST = 1 << _LENGTH_BITS[-1]


def encode_runs(start: np.ndarray, end: np.ndarray, pixels: int) -> list[int]:
    """Encode the runs of a mask, row by row; none ends where the next starts."""
    bits = [f"{_CHANNELS * pixels:032b}", f"{7:05b}", *(f"{size - 1:04b}" for size in _LENGTH_BITS)]
    edges = [0, *np.stack((start, end), 1).ravel().tolist(), pixels]
    for number, (first, last) in enumerate(pairwise(edges)):
        left = _CHANNELS * (last - first)
        while left:
            part = min(left, _LONGEST)
            left -= part
            kind = next(k for k, size in enumerate(_LENGTH_BITS) if part <= 1 << size)
            bits.append(f"1{kind:02b}{part - 1:0{_LENGTH_BITS[kind]}b}{'11111111' if number % 2 else '00000000'}")
    text = "".join(bits)
    return list(int(text + "0" * (-len(text) % 8), 2).to_bytes((len(text) + 7) // 8, "big"))


def decode_brush(data: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode the bytes of a brush region to a mask `H x W` bool: the pixels that are not transparent.

    Bytes that are broken, or of an image of another `(height, width)`, are a ValueError.
    """
    # as text: the fields have any number of bits and start at any bit
    text = (np.unpackbits(np.frombuffer(data, np.uint8)) + ord("0")).tobytes().decode("ascii")
    if len(text) < _HEADER_BITS:
        raise ValueError("its RLE has no header")
    count, depth = int(text[:32], 2), int(text[32:37], 2) + 1
    sizes = [int(text[at : at + 4], 2) + 1 for at in range(37, _HEADER_BITS, 4)]
    height, width = size
    if count != _CHANNELS * height * width or depth > 8:
        raise ValueError(
            f"its RLE has {count} values of {depth} bits, not four bytes for each of {width} x {height} pixels"
        )
    values, done, at = np.zeros(count, np.uint8), 0, _HEADER_BITS
    while done < count:
        length_bits = sizes[int(text[at + 1 : at + 3] or "0", 2)]
        first = at + 3 + length_bits
        length = int(text[at + 3 : first] or "0", 2) + 1
        end = first + (depth if text[at : at + 1] == "1" else depth * length)
        if end > len(text) or done + length > count:
            raise ValueError("its RLE is truncated or broken")
        run = [int(text[k : k + depth], 2) for k in range(first, end, depth)]
        values[done : done + length] = run
        done, at = done + length, end
    return values.reshape(height, width, _CHANNELS)[..., _CHANNELS - 1] > 0


def task(result: PanopticResult, metadata: Metadata, image: str) -> dict[str, Any]:
    """Return a task with a panoptic map as its prediction; crowds, which are no objects, are omitted.

    `image` is the address of the image for Label Studio.
    """
    height, width = result.size
    shown = [s for s in result.segments if not s.iscrowd]
    regions = []
    runs = runs_by_id(result.id_map)
    for segment in shown:
        start, length = runs.get(segment.id, (np.zeros(0, int),) * 2)
        region: dict[str, Any] = {
            "id": str(segment.id),
            "type": "brushlabels",
            "from_name": FROM_NAME,
            "to_name": TO_NAME,
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": {
                "format": "rle",
                "rle": encode_runs(start, start + length, height * width),
                "brushlabels": [metadata.categories[segment.category]],
            },
        }
        if segment.score is not None:
            region["score"] = round(segment.score, 6)
        regions.append(region)
    scores = [s.score for s in shown if s.score is not None]
    prediction: dict[str, Any] = {"model_version": "seamseg", "result": regions}
    if scores:
        prediction["score"] = round(sum(scores) / len(scores), 6)
    return {"data": {TO_NAME: image}, "predictions": [prediction]}


def labeling_config(metadata: Metadata) -> str:
    """Return the labelling interface of a project for such tasks."""
    labels = [
        f'    <Label value={quoteattr(name)} background="#{red:02x}{green:02x}{blue:02x}"/>'
        for name, (red, green, blue) in zip(metadata.categories, metadata.palette)
    ]
    head = f'<View>\n  <Image name="{TO_NAME}" value="${TO_NAME}" zoom="true"/>\n'
    return f'{head}  <BrushLabels name="{FROM_NAME}" toName="{TO_NAME}">\n' + "\n".join(
        [*labels, "  </BrushLabels>\n</View>\n"]
    )


def region_label(value: dict[str, Any]) -> str | None:
    """Return the label of a region; None if it has none."""
    for kind in ("brushlabels", "polygonlabels", "labels"):
        labels = value.get(kind)
        if isinstance(labels, list) and labels and isinstance(labels[0], str):
            return labels[0]
    return None
