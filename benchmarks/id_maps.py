"""Score a pair of panoptic PNGs of 2 megapixels with different DEFLATE libraries.

    python benchmarks/id_maps.py
    python benchmarks/id_maps.py isal --rounds 30

Each case runs the whole operation, from two files to the panoptic quality, with zlib-ng and with the peer, which take
turns. Libraries that are not installed are left out: `pip install isal deflate`.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import panoptic_quality
from timing import Case, options, report

from seamseg.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.idmaps import inflate

PEERS = {"zlib": "zlib", "isal": "isal.isal_zlib", "libdeflate": "deflate"}
"""Module of each library, by its name in the table."""


class WholeBuffer:
    """`zlib.decompressobj` on libdeflate, which decompresses a complete stream only."""

    def __init__(self, module: Any) -> None:
        self.module, self.rows, self.position = module, b"", 0
        self.unconsumed_tail, self.eof = b"", True

    def decompress(self, stream: bytes, size: int) -> bytes:
        """Return the next `size` bytes of the rows; the first call decompresses all of them."""
        if stream:
            size_of_all = panoptic_quality.HEIGHT * (3 * panoptic_quality.WIDTH + 1)
            self.rows = bytes(self.module.zlib_decompress(stream, size_of_all))
        band = self.rows[self.position : self.position + size]
        self.position += len(band)
        return band


class Libdeflate:
    """The part of the interface of zlib that :mod:`seamseg.idmaps.inflate` uses."""

    def __init__(self, module: Any) -> None:
        self.error, self.decompressobj = module.DeflateError, partial(WholeBuffer, module)


def load(name: str) -> Any:
    """Return a library with the interface of zlib, or None if it is not installed."""
    try:
        module = importlib.import_module(PEERS[name])
    except ImportError:
        return None
    return Libdeflate(module) if name == "libdeflate" else module


def case(folder: Path, name: str, library: Any) -> Case:
    """Return the comparison of zlib-ng with another library on the pairs of a folder."""
    installed = inflate.zlib

    def score(used: Any) -> np.ndarray:
        inflate.zlib = used
        try:
            scores = evaluate_panoptic_json(folder / "gt.json", folder / "pred.json")
        finally:
            inflate.zlib = installed
        return np.nan_to_num(np.array([c.PQ for c in scores.per_class], float))

    return Case(f"two pairs, {installed.__name__}", name, lambda: score(installed), lambda: score(library))


def cases(folder: Path) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    for name in PEERS:
        library = load(name)
        if library is None:
            print(f"{name} is not installed")
        else:
            yield name, partial(case, folder, name, library)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    panoptic_quality.SCENES = 1
    with tempfile.TemporaryDirectory(prefix="id-maps-") as name:
        panoptic_quality.make_pairs(Path(name), 2)
        report(cases(Path(name)), arguments)
