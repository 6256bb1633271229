"""Export of a trained model to a file for another engine, and its comparison (docs/how-to/deploy.md)."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from seamseg.checkpoints.model_path import FOREIGN, library_of, local_model
from seamseg.config import config_from_string
from seamseg.contrib.deploy.network import ExportNet, example_inputs
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.deploy.source import ExportSource, check_foreign, open_source
from seamseg.contrib.exported.onnx_engines import open_onnx
from seamseg.contrib.exported.package import PackageSession
from seamseg.inference.images import as_image, network_input
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.exported import CLASSIFIER_SIDES, MAX_EXAMPLE_SIDE, MAX_SIDE, ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.backbones.base import Backbone
from seamseg.utils.errors import InputError, OutOfMemory, counted, lacks_memory, require_packages
from seamseg.utils.files import refuse_existing
from seamseg.utils.limits import format_bytes
from seamseg.utils.output import console, echo
from seamseg.utils.progress import counter, progress
from seamseg.validation.evaluate import check_same_classes

Session = Any
"""An opened file: :class:`seamseg.contrib.exported.onnx_engines.OnnxSession` or `PackageSession`."""


@dataclass(frozen=True)
class Format:
    """A format of exported files: what it needs, what it can hold, and how files are opened."""

    name: str
    packages: tuple[str, ...]
    precisions: tuple[str, ...]
    largest_side: int
    standard_ops: bool
    open: Callable[[Path], Session]


FORMATS = {
    ".onnx": Format("ONNX", ("onnx", "onnxscript", "onnxruntime"), ("fp32",), MAX_SIDE, True, open_onnx),
    ".pt2": Format("AOTInductor", (), ("fp32", "bf16"), MAX_EXAMPLE_SIDE, False, PackageSession),
}
"""By the ending of the file."""

_ROUNDS = 5
_SAME_BOX = 1.0
"""Detections of a class whose corners differ by at most this many pixels are the same."""


@dataclass(frozen=True)
class Agreement:
    """Differences of the outputs for one image; None for those that the network does not have.

    Attributes
    ----------
    detections : number of detections of the network, of the file, and of both
    box, score, mask_logit : largest difference of the detections of both: pixels, score, logit
    equal_pixels : fraction of the pixels whose class is equal
    probability : largest difference, of 255
    values : largest difference of logits and features, as a fraction of the largest value of the output
    maps : largest difference of each map of custom heads, by name
    """

    detections: tuple[int, int, int] | None = None
    box: float | None = None
    score: float | None = None
    mask_logit: float | None = None
    equal_pixels: float | None = None
    probability: int | None = None
    values: float | None = None
    maps: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = []
        if self.detections is not None:
            ours, theirs, both = self.detections
            parts.append(f"detections {both} of {ours} equal" + (f" ({theirs} in the file)" if theirs != ours else ""))
        texts = {
            "box {:.2g} px": self.box,
            "score {:.2g}": self.score,
            "mask logit {:.2g}": self.mask_logit,
            "classes of {:.4g} % of pixels equal": None if self.equal_pixels is None else 100 * self.equal_pixels,
            "probability {}/255": self.probability,
            "values {:.2g} of the largest": self.values,
            **{f"{name} {{:.2g}}": value for name, value in self.maps.items()},
        }
        return ", ".join([*parts, *(text.format(value) for text, value in texts.items() if value is not None)])


_LEAST_WHOLE = 64
"""Smallest side of a network as a whole, whose strides are not known: a map of one cell would be taken for fixed."""


@dataclass(frozen=True, repr=False)
class ExportReport:
    """A written file, and how it compares with the network.

    Attributes
    ----------
    path, nbytes, format : path, size in bytes and format of the file
    metadata : metadata in the file
    seconds, eager_seconds : median time per image, of the file and of the network
    differences : differences by name of the image
    """

    path: Path
    nbytes: int
    format: str
    metadata: ExportedMetadata
    seconds: float
    eager_seconds: float
    differences: Mapping[str, Agreement] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Format a table of names and texts."""
        made = self.metadata
        shape = "free" if made.size is None else f"{made.size[0]} x {made.size[1]}"
        rows = {
            "file": f"{self.path}, {self.format}, {format_bytes(self.nbytes)}",
            "network": f"{made.kind}, part {made.part}, input {shape} (height x width), {made.precision}",
            "time per image": f"{1e3 * self.seconds:.0f} ms, of the network {1e3 * self.eager_seconds:.0f} ms",
            **{name: str(differences) for name, differences in self.differences.items()},
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {text}" for name, text in rows.items())


def compare(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    maps: Iterable[str] = (),
) -> Agreement:
    """Compare the outputs of network and file for the same inputs, by name; `maps` are further outputs."""
    if "size" not in inputs or not {"count", "classmap"} & wanted.keys():
        gaps = {name: np.abs(found[name].astype(np.float64) - values).max() for name, values in wanted.items()}
        return Agreement(values=max(float(gaps[n]) / max(float(np.abs(v).max()), 1e-12) for n, v in wanted.items()))
    height, width = (int(side) for side in inputs["size"])
    gaps = {name: np.abs(wanted[name].astype(np.float64) - found[name])[..., :height, :width] for name in maps}
    differences: dict[str, Any] = {"maps": {name: float(gap.max()) for name, gap in gaps.items()}}
    if "classmap" in wanted:
        ours, theirs = (values["classmap"][:height, :width] for values in (wanted, found))
        differences["equal_pixels"] = float((ours == theirs).mean())
    if "probability" in wanted:
        ours, theirs = (values["probability"][:height, :width].astype(np.int64) for values in (wanted, found))
        differences["probability"] = int(np.abs(ours - theirs).max())
    return Agreement(**(_detections(wanted, found) if "count" in wanted else {}), **differences)


def _detections(wanted: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the differences of detections, each with the nearest one of its class: equal scores may change places."""
    ours, theirs = int(wanted["count"]), int(found["count"])
    distance = np.abs(wanted["boxes"][:ours, None] - found["boxes"][None, :theirs]).max(axis=2)
    distance[wanted["classes"][:ours, None] != found["classes"][None, :theirs]] = np.inf
    pairs = []
    for row in range(ours):
        if theirs and distance[row].min() <= _SAME_BOX:
            column = int(distance[row].argmin())
            pairs.append((row, column))
            distance[:, column] = np.inf
    rows, columns = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    differences: dict[str, Any] = {"detections": (ours, theirs, len(pairs))}
    for name, key in (("box", "boxes"), ("score", "scores"), ("mask_logit", "mask_logits")):
        if key in wanted:
            gaps = np.abs(wanted[key][rows] - found[key][columns])
            differences[name] = float(gaps.max()) if gaps.size else 0.0
    return differences


def export_model(options: ExportOptions) -> ExportReport:
    """Export a trained model, and compare the file with the network; see :func:`seamseg.export`."""
    model, path = options.model, Path(options.out)
    chosen = FORMATS.get(path.suffix)
    if chosen is None:
        raise InputError(f"{path}: its ending decides the format: {' or '.join(FORMATS)}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder")
    refuse_existing(path, options.force)
    if options.precision not in chosen.precisions:
        known = ", ".join(chosen.precisions)
        raise InputError(f"`precision={options.precision}`: {chosen.name} files are exported in {known}")
    if options.int8 is not None and path.suffix != ".onnx":
        raise InputError(f"`int8={options.int8}`: only ONNX files are quantised, not {path.name}")
    require_packages(*chosen.packages, what=str(path), extra="export")
    found = local_model(model)
    if library_of(found) in FOREIGN:
        check_foreign(found, options)
    _say(f"reading {model}")
    source = open_source(found, options)
    if source.metadata.of_queries:
        check_foreign(found, options)
    try:
        return _export(source, path, chosen, options)
    except Exception as error:
        if not lacks_memory(error):
            raise
        raise OutOfMemory(f"{path}: not enough memory for this input: choose a smaller `size`") from error


def _export(source: ExportSource, path: Path, chosen: Format, options: ExportOptions) -> ExportReport:
    size, stated = options.size or source.size, source.metadata
    if _is_free(source, path, options):
        least = stated.multiple if getattr(source.net, "of_parts", True) else _LEAST_WHOLE
        own = CLASSIFIER_SIDES if source.input_size is None else (least, chosen.largest_side)
        metadata = replace(stated, sides=own)
        # in an example of one cell, its side of 1 would be taken for fixed
        most = _largest_example(metadata)
        height, width = (min(max(side, 2 * stated.multiple), most) for side in size)
        size = metadata.padded_size((height, width))
    else:
        metadata = replace(stated, size=size, multiple=1)
    net = source.export_net(chosen.standard_ops)
    eager = source.export_net(False) if chosen.standard_ops else net
    # before the work: an image may be unreadable
    compared = _compared_inputs(source, net, size, options, metadata)
    paths = None
    if options.int8 is not None:
        if source.input_size is None:
            raise InputError(f"`int8={options.int8}`: classifiers are not quantised")
        split = config_from_string(stated.config, source="the model", exported=True).dataloader.train_set
        count = 64 if options.calibrate is None else options.calibrate
        paths = calibration_images(options.int8, stated.metadata, split, count)
    calibrating = "" if paths is None else f", running it on {counted(len(paths), 'image')} to choose the ranges"
    duration = "seconds to minutes" if chosen.standard_ops and paths is None else "minutes"
    _say(f"tracing the network at {size[0]} x {size[1]}{calibrating} and writing {path}, which takes {duration}")
    if paths is None:
        _write(net, path, metadata, size)
    else:
        from seamseg.contrib.deploy.quantize import quantise_file

        images = _images(source, paths, metadata, "calibrate")
        with tempfile.TemporaryDirectory(prefix="seamseg-export-") as folder:
            plain = Path(folder, "float.onnx")
            _write(net, plain, metadata, size)
            metadata = quantise_file(plain, path, map(metadata.inputs, images))
    _say("comparing the file with the network")
    session, names = chosen.open(path), list(net.output_names)
    differences, times, report = {}, [], counter("compare")
    maps = (*metadata.maps, *("ids",) * metadata.with_ids)
    for name, inputs in compared.items():
        found = dict(zip(names, session.run(names, inputs)))
        differences[name] = compare(_run(eager, inputs), found, inputs, maps)
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            _run(eager, inputs)
            middle = time.perf_counter()
            session.run(names, dict(inputs))
            times.append((middle - start, time.perf_counter() - middle))
            report(len(times), len(compared) * _ROUNDS)
    eager_seconds, seconds = (statistics.median(column) for column in zip(*times))
    return ExportReport(path, path.stat().st_size, chosen.name, metadata, seconds, eager_seconds, differences)


def _is_free(source: ExportSource, path: Path, options: ExportOptions) -> bool:
    """Return whether height and width are free: if asked for, and those of whole networks unless a size is given."""
    classifier = source.input_size is None
    windowed = next((m for m in source.net.modules() if isinstance(m, Backbone) and m.has_windows), None)
    if not options.dynamic:
        fixed = classifier or windowed is not None or source.metadata.of_queries
        return options.size is None and options.part == "all" and not fixed
    if windowed is not None:
        raise InputError(
            f"`dynamic=True`: {windowed.name} attends within windows, which depend on the size: choose a `size`"
        )
    side, multiple, (least, most) = source.size[0], source.metadata.multiple, CLASSIFIER_SIDES
    if classifier and path.suffix == ".pt2" and (side % multiple or not least <= side <= most):
        raise InputError(
            f"`dynamic=True`: input.crop_val {side} is no multiple of {multiple} from {least} to {most}: "
            "export it with a fixed size"
        )
    return True


def _write(net: ExportNet, target: Path, metadata: ExportedMetadata, size: tuple[int, int]) -> None:
    if target.suffix == ".onnx":
        from seamseg.contrib.deploy.onnx import write_onnx

        write_onnx(net, target, metadata, size)
    else:
        from seamseg.contrib.deploy.aoti import write_package

        write_package(net, target, metadata, size)


def _compared_inputs(
    source: ExportSource, net: ExportNet, size: tuple[int, int], options: ExportOptions, metadata: ExportedMetadata
) -> dict[str, dict[str, np.ndarray]]:
    """Return the inputs to compare on, by name: the images, or a generated image of the whole size."""
    if source.input_size is None:
        if options.check:
            raise InputError("`check`: the images of a classifier are compared on noise only")
        return {"noise": {name: value.numpy() for name, value in example_inputs(net, size).items()}}
    with tempfile.TemporaryDirectory(prefix="seamseg-export-") as folder:
        paths = {str(path): path for path in options.check}
        if not paths:
            paths = {"generated image": Path(folder, "generated.jpg")}
            write_synthetic_image(Path(folder, "generated.jpg"), size)
        images = _images(source, paths.values(), metadata)
        return dict(zip(paths, map(metadata.inputs, images)))


def calibration_images(data: str | Path, metadata: Metadata, split: str | None, count: int) -> list[Path]:
    """Return up to `count` images of a split of a dataset folder, evenly spaced; of all images without a split."""
    if count < 1:
        raise InputError(f"`calibrate={count}`: calibrate with at least one image")
    folder = DatasetFolder(data)
    check_same_classes(metadata, "the network", folder.metadata, str(data))
    images = folder.split(split) if split is not None and split in folder.splits else folder.metadata.images
    if not images:
        raise InputError(f"{data}: has no images to calibrate with")
    chosen = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int))
    return [folder.image_path(images[number].id) for number in chosen]


def _largest_example(metadata: ExportedMetadata) -> int:
    """Return the largest side of the images that a file of free size is traced, calibrated and compared with."""
    assert metadata.sides is not None
    return min(MAX_EXAMPLE_SIDE, metadata.sides[1]) // metadata.multiple * metadata.multiple


def _images(
    source: ExportSource, paths: Iterable[str | Path], metadata: ExportedMetadata, desc: str | None = None
) -> Iterator[np.ndarray]:
    """Yield images at the size of the network, `H x W x 3`, which are read one by one; show the progress of `desc`."""
    assert source.input_size is not None
    scale = replace(source.input_size, max_size=metadata.size or (_largest_example(metadata),) * 2)
    # made with the first image, so that the time until then does not count
    for path in paths if desc is None else progress(paths, desc=desc):
        yield network_input(as_image(path), scale)


@torch.inference_mode()
def _run(net: ExportNet, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = net(*(torch.from_numpy(value) for value in inputs.values()))
    return {
        name: value.float().numpy() if value.is_floating_point() else value.numpy()
        for name, value in zip(net.output_names, outputs)
    }


def _say(text: str) -> None:
    if not console.quiet:
        echo(text, file=sys.stderr, flush=True)


def synthetic_image(size: tuple[int, int]) -> np.ndarray:
    """Return an RGB image, uint8 `H x W x 3`, of smooth colours and some texture; `size` is `(height, width)`."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC)).astype(np.int16)
    smooth = smooth + rng.integers(-12, 13, (*size, 1), dtype=np.int16)
    return smooth.clip(0, 255).astype(np.uint8)


def write_synthetic_image(path: Path, size: tuple[int, int]) -> None:
    """Write :func:`synthetic_image` as a JPEG file."""
    Image.fromarray(synthetic_image(size)).save(path, quality=92)
