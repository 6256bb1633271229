"""Time writing the predictions of a photo of 1024 x 2048 with 100 detections, by format and by compression of the PNGs.

    python benchmarks/exports.py

The peer of a grey image is Pillow's default compression; the bytes of both are printed after the table.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import timing
import torch
from PIL import Image

from seamseg.formats.cityscapes.instance_files import mask_png
from seamseg.formats.cityscapes.labels import cityscapes_classes
from seamseg.formats.label_png import write_grey_png
from seamseg.fusion import fuse, paste_detections, to_result
from seamseg.predict.sources.base import Source
from seamseg.predict.writers import make_writers
from seamseg.predict.writers.base import OutputFormat
from seamseg.predictions import ArrayPrediction, Prediction

SIZE = (1024, 2048)


def scene(count: int = 100) -> ArrayPrediction:
    """Make detections of all sizes over bands of stuff."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28), indexing="ij")
    masks = (4 - 5 * (x**2 + y**2)).expand(count, 28, 28).contiguous()
    semantic = (torch.arange(SIZE[0]) * 11 // SIZE[0]).reshape(-1, 1).expand(SIZE).contiguous()
    return Prediction(
        timing.boxes_of_scene(count, generator, 90.0, *SIZE),
        torch.randint(0, 8, (count,), generator=generator),
        torch.linspace(0.99, 0.3, count),
        masks,
        semantic,
        SIZE,
    ).on_cpu()


def main() -> None:
    """Print the table."""
    arguments = timing.options(__doc__).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seamseg-exports-"))
    prediction, metadata = scene(), cityscapes_classes()
    result = to_result(fuse(prediction, metadata.num_stuff), SIZE, metadata.num_stuff)
    source = Source(Path("a.png"), "a", "a.png")
    labels = np.zeros(256, np.uint8)
    for segment in result.segments:
        labels[segment.id] = segment.category
    pictures = {"labels, 8 bit": labels[result.id_map], "ids, 16 bit": result.id_map.astype("u2")}

    def picture(name: str, values: np.ndarray) -> timing.Case:
        path = folder / f"{name}.png"
        return timing.Case(
            name,
            "Pillow's default compression",
            lambda: write_grey_png(path, values),
            lambda: Image.fromarray(values).save(f"{path}.peer", "PNG"),
        )

    def masks() -> timing.Case:
        found = list(paste_detections(prediction, SIZE))

        def peer() -> None:
            for one in found:
                assert one.crop is not None
                full = np.zeros(SIZE, np.uint8)
                (y, x), (rows, columns) = one.corner, one.crop.shape
                full[y : y + rows, x : x + columns][one.crop] = 255
                Image.fromarray(full).save(BytesIO(), "PNG", compress_type=zlib.Z_RLE)

        return timing.Case(
            "masks of 100 detections",
            "Pillow, whole pictures, run lengths",
            lambda: [mask_png(one.crop, one.corner, SIZE) for one in found if one.crop is not None] and None,
            peer,
        )

    def whole(name: str) -> timing.Case:
        ours, coco = (make_writers([f], folder, metadata)[0] for f in (name, "coco"))

        def write(writer: OutputFormat) -> None:
            writer.write(source, None, prediction, result)

        return timing.Case(f"all of {name}", "the format coco", partial(write, ours), partial(write, coco))

    cases: list[tuple[str, Callable[[], timing.Case]]] = [
        ("masks", masks),
        *((name, lambda name=name: picture(name, pictures[name])) for name in pictures),
        *((name, lambda name=name: whole(name)) for name in ("cityscapes", "vistas")),
    ]
    timing.report(cases, arguments)
    for name in pictures:
        sizes = [path.stat().st_size for path in (folder / f"{name}.png", folder / f"{name}.png.peer") if path.exists()]
        print(name, *sizes, "bytes")


if __name__ == "__main__":
    main()
