"""A process whose address space is limited while it works on something too large for it; prints what happened.

    python -m support.limited_memory FOLDER

torch alone takes gigabytes of address space, so the limit is relative to what the process has after a first run.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import torch

import seamseg
from seamseg.data.input_size import InputSize
from seamseg.ops import fused
from support.classes import write_classifier
from support.micro import narrow_body
from support.shared_models import write_run

SPARE = 150 << 20
"""Bytes beside those of a first run: half of what the network needs for the large image."""
SMALL, LARGE = (64, 96), (1024, 2048)


def photo(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)


@contextmanager
def limited(spare: int = SPARE) -> Iterator[None]:
    """Limit the address space to what the process has, and `spare` bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def load(folder: Path, **options: Any) -> Any:
    """A model whose network's input has the size of the image."""
    model = seamseg.load(folder, device="cpu", **options)
    model.input_size = InputSize()
    return model


def attempt(function: Any, *args: Any) -> str:
    """What a call prints or raises."""
    with redirect_stderr(io.StringIO()) as text:
        try:
            function(*args)
        except seamseg.utils.errors.SeamsegError as error:
            return f"{type(error).__name__}: {error}"
    return text.getvalue()


def predict(folder: Path) -> dict[str, Any]:
    model, large = load(folder), photo(LARGE)
    sizes = [model.predict(large, tiles=tiles).size for tiles in ("off", 724)]
    with limited():
        refused = attempt(model.predict, large, "off")
        in_tiles = attempt(lambda: sizes.append(model.predict(large).size))
    return {"refused": refused, "in_tiles": in_tiles, "sizes": sizes}


def ray(folder: Path) -> dict[str, Any]:
    from seamseg.contrib.ray import PanopticActor

    actor = PanopticActor(folder, device="cpu", tiles="off")
    actor.model.input_size = InputSize()
    images = np.empty(3, object)
    images[:] = [photo(SMALL), photo(LARGE), photo(SMALL)]
    whole = actor({"image": images})
    with limited():
        rows = actor({"image": images})
    same = [bool(a == b) for a, b in zip(rows["panoptic_png"], whole["panoptic_png"])]
    return {"errors": [whole["error"].tolist(), rows["error"].tolist()], "same": same}


def serve(folder: Path) -> dict[str, Any]:
    from support.serving import png, serving

    answers = []
    small, large = png(photo(SMALL)), png(photo(LARGE), compress_level=1)
    with serving(load(folder, tiles="off")) as client:
        for data in (small, large):
            answers.append(client.predict(data).status)
        with limited():
            for data in (large, small, large, small):
                answer = client.predict(data)
                answers.append([answer.status, answer.json.get("error")])
        answers.append(client.predict(large).status)
        alive = client.service._batcher.alive
    return {"answers": answers, "alive": alive}


def export(folder: Path) -> dict[str, Any]:
    import seamseg.contrib.deploy.onnx  # noqa: F401
    from seamseg.cli.main import main

    model = write_classifier(folder / "classifier")
    words = ("export", str(model), str(folder / "large.onnx"), "--size", "8192x8192", "--quiet")
    with redirect_stderr(io.StringIO()) as text, limited():
        code = main(words)
    return {"code": code, "lines": text.getvalue().splitlines()}


def main() -> None:
    """Run all; print the results, the fused operators that were switched off, and the warnings, as JSON."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with narrow_body(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_run(folder / "run")
        found = {scenario.__name__: scenario(folder / "run") for scenario in (predict, ray, serve, export)}
    messages = [str(warning.message) for warning in caught if "fused" in str(warning.message)]
    print(json.dumps(found | {"off": sorted(fused._FAILED), "warnings": messages}))


if __name__ == "__main__":
    main()
