"""Time writing the predictions of a 1024 x 2048 image, by format and by compression of the PNGs: CPU time of a core.

    python benchmarks/exports.py [--rounds 7] [NAME ...]

Exports are of 100 detections. The overlay and the panoptic PNG are of a map of 40 segments; their peers are numpy for
the pixels and Pillow for the files, as they were before the C functions. The peer of a grey image is Pillow's default
compression; the bytes of both are printed after the table.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from unittest import mock

import numpy as np
import timing
import torch
from PIL import Image

from seamseg.formats.cityscapes.instance_files import mask_png
from seamseg.formats.cityscapes.labels import cityscapes_classes
from seamseg.formats.coco_writer import CocoPanopticWriter, encode_panoptic
from seamseg.formats.id_png import id_image
from seamseg.formats.label_png import write_grey_png
from seamseg.fusion import fuse, paste_detections, to_result
from seamseg.idmaps import library
from seamseg.inference.result import Panoptic
from seamseg.predict.source import Source
from seamseg.predict.writers import make_writers
from seamseg.predict.writers.base import OutputFormat
from seamseg.predict.writers.images import OVERLAY_QUALITY, OverlayWriter
from seamseg.predictions import ArrayPrediction, Prediction
from seamseg.visualize import draw_overlay

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


def panoptic(folder: Path) -> dict[str, Callable[[], timing.Case]]:
    """Make the cases of the formats coco and overlay, of a map of 40 segments."""
    prediction, metadata, source = scene(41), cityscapes_classes(), Source(Path("a.png"), "a", "a.png")
    blotches = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    photo = np.asarray(Image.fromarray(blotches).resize(SIZE[::-1], Image.Resampling.BICUBIC))
    coco, overlay = CocoPanopticWriter(folder / "40" / "panoptic.json", metadata), OverlayWriter(folder, metadata)

    def fused() -> Panoptic:
        return Panoptic.of(to_result(fuse(prediction, metadata.num_stuff), SIZE, metadata.num_stuff), metadata)

    result = fused()
    assert len(result.segments) == 40, len(result.segments)

    def in_numpy(function: Callable[[], np.ndarray]) -> np.ndarray:
        with mock.patch.object(library, "functions", None):
            return function()

    def numpy_overlay(result: Panoptic) -> np.ndarray:
        return in_numpy(lambda: draw_overlay(photo, result, metadata.palette))

    def pillow_jpeg(result: Panoptic) -> None:
        Image.fromarray(numpy_overlay(result)).save(folder / "peer.jpg", "JPEG", quality=OVERLAY_QUALITY)

    def pillow_png(result: Panoptic) -> None:
        _, values = encode_panoptic("a", result.segments, coco.classes, coco.palette)
        table = np.zeros(int(result.id_map.max()) + 1, np.uint32)
        for identity, value in values:
            table[identity] = value
        id_image(table[result.id_map]).save(folder / "40" / "panoptic" / "a.png.peer", "PNG", compress_level=3)

    def files(result: Panoptic) -> None:
        coco.write("a", result)
        overlay.write(source, photo, prediction, result)

    def peer_files(result: Panoptic) -> None:
        pillow_png(result)
        pillow_jpeg(result)

    made: dict[str, tuple[str, Callable[[], object], Callable[[], object]]] = {
        "fusion": ("numpy", lambda: fused().id_map, lambda: in_numpy(lambda: fused().id_map)),
        "overlay": ("numpy", lambda: draw_overlay(photo, result, metadata.palette), lambda: numpy_overlay(result)),
        "overlay to JPEG": (
            "numpy, Pillow",
            lambda: overlay.write(source, photo, prediction, result),
            lambda: pillow_jpeg(result),
        ),
        "panoptic PNG": ("numpy, Pillow", lambda: coco.write("a", result) and None, lambda: pillow_png(result)),
        "fusion, coco and overlay": ("numpy, Pillow", lambda: files(fused()), lambda: peer_files(fused())),
    }
    return {name: partial(timing.Case, name, *sides) for name, sides in made.items()}


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
            "Pillow, whole image, run lengths",
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
    timing.report([*panoptic(folder).items(), *cases], arguments, time.process_time)
    files = {name: folder / f"{name}.png" for name in pictures} | {"panoptic PNG": folder / "40" / "panoptic" / "a.png"}
    for name, path in files.items():
        sizes = [file.stat().st_size for file in (path, path.with_name(f"{path.name}.peer")) if file.exists()]
        print(name, *sizes, "bytes")


if __name__ == "__main__":
    main()
