"""An exported network for a predictor: ONNX Runtime or OpenVINO run an .onnx file, without torch, and torch a .pt2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from seamseg.checkpoints.model_path import PACKAGE_ENDING, local_model
from seamseg.config import Config, config_from_string, default_config
from seamseg.data.input_size import InputSize
from seamseg.formats.exported import MAX_SIDE, QUERY_OUTPUTS, ExportedMetadata
from seamseg.inference.onnx_engines import OnnxSession, open_onnx
from seamseg.inference.options import InferenceOptions
from seamseg.inference.queries import prediction_of_queries
from seamseg.predictions import ArrayPrediction, Prediction
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, OutOfMemory, SeamsegError, one_line
from seamseg.utils.limits import parse_json

_KINDS = {
    **dict.fromkeys(("boxes", "scores", "mask_logits", "class_logits", "logits"), "f"),
    **dict.fromkeys(("classes", "count", "ids"), "i"),
}
"""Kinds of the types of outputs in numpy; those of class maps are `u`, of custom heads any of numbers."""
_LARGEST_MASK = 1024
_MOST_QUERIES = 1000
_BUILT_IN = ("tta", "tta_fusion", "precision", "compile", "cuda_graphs", "pad_to")
"""Options that decide what the graph computes, which cannot be changed after the export."""
_Arrays: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Type and shape of outputs, by name."""


class ExportedNetwork:
    """A network in an exported file; see :class:`seamseg.inference.predictor.InferenceNetwork`.

    Parameters
    ----------
    session : :class:`seamseg.inference.onnx_engines.OnnxSession` or :class:`seamseg.inference.package.PackageSession`
    name : name of the file, for messages
    exported : what the file states about the network
    nms_threshold : NMS threshold (IoU) of its detections; None for a network without detections
    probabilities : return the probability of the class of each pixel, too
    """

    averaged = False

    def __init__(
        self,
        session: Any,
        name: str,
        exported: ExportedMetadata,
        nms_threshold: float | None,
        probabilities: bool = False,
    ) -> None:
        self._session = session
        self._name = name
        self.exported = exported
        self.kind = exported.kind
        self.precision = exported.precision
        self.nms_threshold = nms_threshold
        self.map_formats = exported.maps
        self._probabilities = probabilities
        self.device = session.device
        self.on_gpu = self.device.startswith("cuda")
        self.uses_torch = session.uses_torch

    @property
    def tiles_problem(self) -> str | None:
        """Why images cannot be processed in tiles; None if they can."""
        if self.kind == "classification":
            return f"{self._name} is a classifier, which needs the whole image"
        if self.exported.with_ids:
            return f"{self._name} predicts ids, which tiles do not share"
        if self.exported.size is None:
            return None
        height, width = self.exported.size
        return f"{self._name} was exported for inputs of {width} x {height} pixels: for tiles export it without a size"

    def run(self, images: Sequence[np.ndarray]) -> list[ArrayPrediction]:
        """Return the outputs for images `H x W x 3` uint8 at the size of the network's input, one by one.

        Raises
        ------
        OutOfMemory
            if the memory does not suffice
        SeamsegError
            if the engine fails
        """
        return [self._run(image) for image in images]

    def _run(self, image: np.ndarray) -> ArrayPrediction:
        if self.kind == "classification":
            return self._classify(image)
        height, width = size = int(image.shape[0]), int(image.shape[1])
        most = self.exported.max_size
        if most is not None and (height > most[0] or width > most[1]):
            ways = "" if self.exported.size else f", or set `tiles={most[0] // 2}`"
            raise SeamsegError(
                f"{self._name}: was exported for inputs of {most[1]} x {most[0]} pixels, this one has {width} x "
                f"{height}: choose a smaller `shortest_size`{ways}"
            )
        inputs = self.exported.inputs(image)
        found = self._outputs(inputs)
        if self.exported.of_queries:
            padded_size = int(inputs["image"].shape[2]), int(inputs["image"].shape[3])
            class_logits, mask_logits = (found[name] for name in QUERY_OUTPUTS)
            classes, num_stuff = np.array(self.exported.query_classes), self.exported.metadata.num_stuff
            return prediction_of_queries(class_logits, mask_logits, size, padded_size, classes, num_stuff)
        maps = {name: found[name][..., :height, :width] for name in self.map_formats}
        if self.exported.with_ids:
            maps["ids"] = found["ids"][:height, :width]
        if self._probabilities:
            maps["probability"] = found["probability"][:height, :width]
        count = int(found.get("count", 0))
        nothing = np.zeros(0, np.float32)
        classmap, masks = found.get("classmap"), found.get("mask_logits")
        return Prediction(
            found.get("boxes", nothing.reshape(0, 4))[:count],
            found.get("classes", nothing.astype(np.int64))[:count],
            found.get("scores", nothing)[:count],
            None if masks is None else masks[:count],
            None if classmap is None else classmap[:height, :width],
            size,
            maps=maps,
        )

    def _classify(self, image: np.ndarray) -> ArrayPrediction:
        """Run a classifier on a centre crop."""
        height, width = size = int(image.shape[0]), int(image.shape[1])
        if self.exported.size not in (None, size):
            raise SeamsegError(
                f"{self._name}: was exported for crops of {self.exported.size[1]} x {self.exported.size[0]} pixels, "
                f"this one has {width} x {height}"
            )
        mean, std = (np.array(values, np.float32) for values in (self.exported.mean, self.exported.std))
        values = (image.astype(np.float32) / np.float32(255) - mean) / std
        logits = self._outputs({"image": np.ascontiguousarray(values.transpose(2, 0, 1)[None])})["logits"][0]
        nothing = np.zeros(0, np.float32)
        return Prediction(nothing.reshape(0, 4), nothing.astype(np.int64), nothing, None, None, size, logits=logits)

    def _outputs(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = self.exported.outputs
        try:
            found = dict(zip(names, self._session.run(names, inputs)))
        except SeamsegError:
            raise
        except Exception as error:  # its types are known to onnxruntime only
            reason = one_line(error)[:300]
            if lacks_memory(error):
                raise OutOfMemory(f"{self._name}: out of memory: {reason}") from error
            raise SeamsegError(f"{self._name}: the network fails: {reason}") from error
        arrays = {name: (value.dtype, value.shape) for name, value in found.items() if isinstance(value, np.ndarray)}
        size = (int(inputs["image"].shape[2]), int(inputs["image"].shape[3]))
        problem = _shape_problem(self.exported, arrays, size) or _value_problem(self.exported, found)
        if problem is not None:
            raise _wrong_outputs(self._name, problem)
        return found


class ExportedModel:
    """An exported network that is opened; see :class:`seamseg.inference.predictor.OpenedModel`.

    Parameters
    ----------
    model, device, config, meta, options : see :func:`seamseg.inference.predictor.open_for_inference`

    Attributes
    ----------
    max_size : `(height, width)` of its input; None if it is free

    Raises
    ------
    InputError
        if the file is missing, truncated, of another version or no exported network, an option cannot be changed after
        the export, or onnxruntime is not installed
    """

    def __init__(
        self,
        model: str | Path,
        device: Any,
        config: str | Path | None,
        meta: str | Path | None,
        options: InferenceOptions,
    ) -> None:
        path = local_model(model)
        self.name = str(model)
        for name, value in (("config", config), ("meta", meta)):
            if value is not None:
                raise InputError(f"`{name}` has no effect: {model} contains its configuration and classes")
        if changed := options.changed(_BUILT_IN):
            raise InputError(f"`{changed}` cannot be changed after the export: use the model that {model} is of")
        self._session, self._exported = _open(path, str(device))
        self.kind = self._exported.kind
        self.metadata = self._exported.metadata
        self.max_size = self._exported.size
        stated = self._exported.reference
        self.reference = None if stated is None else InputSize(*stated)
        self.config = self._config(options)

    def _config(self, options: InferenceOptions) -> Config:
        """Return the configuration of the network; that of a classifier has no other keys than the default one."""
        sections = () if self.kind == "classification" else ("general", "dataloader")
        options.check_overrides(sections, f"cannot be changed after the export of {self.name}")
        if self.kind == "classification":
            return default_config()
        return config_from_string(self._exported.config, None, self.name, options.overrides, exported=True)

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input; InputError if an option is to change that of a classifier."""
        if self.kind != "classification":
            size_for = options.input_size_of_authors if self._exported.of_queries else options.input_size
            return size_for(self.config).within(self.max_size)
        for name in ("shortest_size", "longest_max_size", "size", "preview"):
            if getattr(options, name):
                raise InputError(f"`{name}={getattr(options, name)}`: {self.name} is a classifier of one size")
        scale, side = _classifier_sizes(self._exported, self.name)
        return InputSize(None if scale < 1 else scale, crop=self._exported.size or (side, side))

    def build(self, options: InferenceOptions) -> ExportedNetwork:
        """Return the network."""
        threshold = None if self.kind in ("semantic", "classification") else self.config.roi.nms_threshold
        return ExportedNetwork(self._session, self.name, self._exported, threshold, options.probabilities)


def _shape_problem(exported: ExportedMetadata, found: _Arrays, size: tuple[int, int]) -> str | None:
    """Return what is wrong with types and shapes of the outputs for an input of `(height, width)`; None if nothing."""
    missing = [name for name in exported.outputs if name not in found]
    if missing:
        return f"{missing[0]} is no array"
    if exported.of_queries:
        return _query_shape_problem(exported, found, size)
    rows = found["boxes"][1][:1] if "boxes" in found else ()
    masks = found["mask_logits"][1][1:2] if "mask_logits" in found else ()
    shapes: dict[str, tuple[int, ...]] = {
        "boxes": (*rows, 4),
        "classes": rows,
        "scores": rows,
        "mask_logits": (*rows, *masks, *masks),
        "count": (),
        "logits": (1, exported.metadata.num_classes),
        **{name: (*([spec.channels] if spec.channels > 1 else []), *size) for name, spec in exported.maps.items()},
    }
    kinds = _KINDS | dict.fromkeys(exported.maps, "fiub")
    if problem := _difference({name: shapes.get(name, size) for name in exported.outputs}, found, kinds):
        return problem
    if masks and not 0 < masks[0] <= _LARGEST_MASK:
        return f"mask_logits has sides of {masks[0]}"
    return None


def _query_shape_problem(exported: ExportedMetadata, found: _Arrays, size: tuple[int, int]) -> str | None:
    """Return what :func:`_shape_problem` does for a network of queries."""
    assert exported.query_classes is not None
    (_, class_shape), (_, mask_shape) = (found[name] for name in QUERY_OUTPUTS)
    queries, sides = class_shape[:1], mask_shape[1:3]
    shapes = ((*queries, len(exported.query_classes) + 1), (*queries, *sides))
    if problem := _difference(dict(zip(QUERY_OUTPUTS, shapes)), found, _KINDS):
        return problem
    inside = len(sides) == 2 and all(0 < side <= most for side, most in zip(sides, size))
    if not inside or not 0 < queries[0] <= _MOST_QUERIES:
        return f"mask_logits has the shape {mask_shape}"
    return None


def _difference(shapes: Mapping[str, tuple[int, ...]], found: _Arrays, kinds: Mapping[str, str]) -> str | None:
    """Return the first output of another type or shape, in words; None if there is none."""
    for name, wanted in shapes.items():
        dtype, shape = found[name]
        if dtype.kind not in kinds.get(name, "u"):
            return f"{name} has values of type {dtype}"
        if shape != wanted:
            return f"{name} has the shape {shape}, not {wanted}"
    return None


def _value_problem(exported: ExportedMetadata, found: Mapping[str, np.ndarray]) -> str | None:
    """Return what is wrong with the values of outputs whose shapes are right; None if nothing."""
    classes = exported.metadata
    if "count" in found:
        count, rows = int(found["count"]), len(found["boxes"])
        if not 0 <= count <= rows:
            return f"count is {count}, of {rows} boxes"
        for name in ("boxes", "scores"):
            if not np.isfinite(found[name][:count]).all():
                return f"{name} are not finite"
        things = found["classes"][:count]
        if count and not 0 <= things.min() <= things.max() < classes.num_thing:
            return f"classes are {things.min()} to {things.max()}, of {classes.num_thing} classes of things"
        if "ids" in found and not 0 <= found["ids"].min() <= found["ids"].max() <= count:
            return f"ids are {found['ids'].min()} to {found['ids'].max()}, of {count} detections"
    logits = QUERY_OUTPUTS if exported.of_queries else ("logits",)
    for name in logits:
        if name in found and not np.isfinite(found[name]).all():
            return f"{name} are not finite"
    most = int(found["classmap"].max()) if "classmap" in found else 0
    if most and most >= classes.num_classes:
        return f"classmap has class {most}, of {classes.num_classes} classes"
    return None


def _wrong_outputs(name: str, problem: str) -> InputError:
    return InputError(f"{name}: its outputs are not those of an exported network: {problem}")


def _classifier_sizes(exported: ExportedMetadata, name: str) -> tuple[int, int]:
    """Return the shortest side to which images are scaled for a classifier, and the side of their centre crop."""
    try:
        sizes = parse_json(exported.config)["input"]
        scale, crop = int(sizes["scale_val"]), int(sizes["crop_val"])
        if not scale <= MAX_SIDE or not 0 < crop <= MAX_SIDE:
            raise ValueError(f"{scale} and {crop}")
        return scale, crop
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise InputError(
            f"{name}: its configuration lacks input.scale_val or input.crop_val, or they are out of range ({error})"
        ) from None


def _open(path: Path, device: str) -> tuple[Any, ExportedMetadata]:
    """Return the session of a file, and what the file states about its network."""
    if path.suffix.lower() == PACKAGE_ENDING:
        from seamseg.inference.package import PackageSession

        session = PackageSession(path, device)
        return session, _whole(session.exported, str(path))
    found = open_onnx(path, device)
    return found, _metadata(found, str(path))


def _whole(exported: ExportedMetadata, name: str) -> ExportedMetadata:
    """Raise InputError if a file holds a part of a network."""
    if exported.part != "all":
        raise InputError(f"{name}: holds part {exported.part!r} of a network only: export all parts")
    return exported


def _metadata(session: OnnxSession, name: str) -> ExportedMetadata:
    """Return what a file states about its network; InputError if it is none of `seamseg export`."""
    exported = _whole(session.exported, name)
    if not set(exported.outputs) <= set(session.outputs):
        raise InputError(
            f"{name}: its graph has the outputs {', '.join(session.outputs)}, not those of a network of kind "
            f"{exported.kind}: export it again"
        )
    if exported.precision == "int8" and session.integer_layers == 0:
        raise InputError(f"{name}: an int8 file, but {session.device} computes all of it in float: use `device=cpu`")
    return exported
