"""An exported network for a predictor: ONNX Runtime or OpenVINO run an .onnx file, without torch, and torch a .pt2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.checkpoints.model_path import PACKAGE_ENDING, local_model
from seamseg.config import Config, config_from_string, default_config
from seamseg.contrib.classification.config import parse_classifier_config
from seamseg.contrib.exported.onnx_engines import open_onnx
from seamseg.contrib.foreign.queries import prediction_of_queries
from seamseg.data.input_size import InputSize
from seamseg.inference.options import InferenceOptions
from seamseg.maps.formats.exported import QUERY_OUTPUTS, ExportedMetadata
from seamseg.maps.predictions import ArrayPrediction, InferenceNetwork, Prediction
from seamseg.results import result_of
from seamseg.utils.errors import InputError, OutOfMemory, SeamsegError, lacks_memory, one_line
from seamseg.utils.limits import parse_json

_BUILT_IN = ("tta", "tta_fusion", "precision", "compile", "cuda_graphs", "pad_to")
"""Options that decide what the graph computes, which cannot be changed after the export."""
_NOTHING = np.zeros(0, np.float32)


class ExportedNetwork(InferenceNetwork):
    """A network in an exported file, named `name` in messages, which a session runs."""

    def __init__(self, session: Any, name: str, nms_threshold: float, probabilities: bool = False) -> None:
        self._session = session
        self._names: Sequence[str] = session.outputs
        self._name = name
        self.exported: ExportedMetadata = session.exported
        self.kind, self.result_type = self.exported.kind, result_of(self.exported.kind)
        self.precision = self.exported.precision
        has_detections = self.exported.of_queries or "count" in session.outputs
        self.nms_threshold = nms_threshold if has_detections else None
        self.map_formats = self.exported.maps
        self._probabilities = probabilities
        self.device = session.device
        self.on_gpu = self.device.startswith("cuda")
        self.uses_torch = session.uses_torch
        if self.exported.with_ids:
            self.tiles_problem = f"{name} predicts ids, which tiles do not share"
        elif self.exported.size is not None:
            size = f"{self.exported.size[1]} x {self.exported.size[0]} pixels"
            self.tiles_problem = f"{name} was exported for inputs of {size}: for tiles export it without a size"

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """Return the outputs for images `H x W x 3` uint8 at the size of the network's input, one by one."""
        return [self._run(image) for image in images]

    def _run(self, image: np.ndarray) -> ArrayPrediction:
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
        masks, semantic = found.get("mask_logits"), found.get("classmap")
        return Prediction(
            found.get("boxes", _NOTHING.reshape(0, 4))[:count],
            found.get("classes", _NOTHING.astype(np.int64))[:count],
            found.get("scores", _NOTHING)[:count],
            None if masks is None else masks[:count],
            None if semantic is None else semantic[:height, :width],
            size,
            maps=maps,
        )

    def _outputs(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return dict(zip(self._names, self._session.run(self._names, inputs)))
        except SeamsegError:
            raise
        except Exception as error:  # its types are known to onnxruntime only
            reason = one_line(error)[:300]
            if lacks_memory(error):
                raise OutOfMemory(f"{self._name}: out of memory: {reason}") from error
            raise SeamsegError(f"{self._name}: the network fails: {reason}") from error


class ExportedClassifier(ExportedNetwork):
    """A classifier in an exported file, which takes centre crops."""

    def __init__(self, session: Any, name: str) -> None:
        super().__init__(session, name, 0.0)
        self.tiles_problem = f"{name} is a classifier, which needs the whole image"

    def _run(self, image: np.ndarray) -> ArrayPrediction:
        mean, std = (np.array(values, np.float32) for values in (self.exported.mean, self.exported.std))
        values = (image.astype(np.float32) / np.float32(255) - mean) / std
        logits = self._outputs({"image": np.ascontiguousarray(values.transpose(2, 0, 1)[None])})["logits"][0]
        none = (_NOTHING.reshape(0, 4), _NOTHING.astype(np.int64), _NOTHING, None, None)
        return Prediction(*none, (int(image.shape[0]), int(image.shape[1])), logits=logits)


class ExportedModel:
    """An exported network that is opened; see :class:`seamseg.inference.predictor.OpenedModel`."""

    def __init__(self, session: Any, name: str, options: InferenceOptions) -> None:
        self.name = name
        self._session = session
        self._exported: ExportedMetadata = session.exported
        self.kind = self._exported.kind
        self.metadata = self._exported.metadata
        stated = self._exported.reference
        self.reference = None if stated is None else InputSize(*stated)
        self.config = self._config(options)

    def _config(self, options: InferenceOptions) -> Config:
        options.check_overrides(("general", "dataloader"), f"cannot be changed after the export of {self.name}")
        return config_from_string(self._exported.config, None, self.name, options.overrides, exported=True)

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input."""
        size_for = options.input_size_of_authors if self._exported.of_queries else options.input_size
        return replace(size_for(self.config), max_size=self._exported.size)

    def build(self, options: InferenceOptions) -> ExportedNetwork:
        """Return the network."""
        return ExportedNetwork(self._session, self.name, self.config.roi.nms_threshold, options.probabilities)


class ExportedClassifierModel(ExportedModel):
    """An exported classifier that is opened; its configuration is the default one."""

    def _config(self, options: InferenceOptions) -> Config:
        options.check_overrides((), f"cannot be changed after the export of {self.name}")
        return default_config()

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input; InputError if an option is to change it."""
        for name in ("shortest_size", "longest_max_size", "size", "preview"):
            if getattr(options, name):
                raise InputError(f"`{name}={getattr(options, name)}`: {self.name} is a classifier of one size")
        sizes = parse_classifier_config(parse_json(self._exported.config), self.name).input
        crop = self._exported.size or (sizes.crop_val, sizes.crop_val)
        return InputSize(sizes.scale_val if sizes.scale_val > 0 else None, crop=crop)

    def build(self, options: InferenceOptions) -> ExportedNetwork:
        """Return the network."""
        return ExportedClassifier(self._session, self.name)


def open_model(
    model: str | Path, device: Any, config: str | Path | None, meta: str | Path | None, options: InferenceOptions
) -> ExportedModel:
    """Open an exported file; arguments and errors of :func:`seamseg.inference.predictor.open_for_inference`."""
    path, name = local_model(model), str(model)
    for argument, value in (("config", config), ("meta", meta)):
        if value is not None:
            raise InputError(f"`{argument}` has no effect: {model} contains its configuration and classes")
    if changed := options.changed(_BUILT_IN):
        raise InputError(f"`{changed}` cannot be changed after the export: use the model that {model} is of")
    if path.suffix.lower() == PACKAGE_ENDING:
        from seamseg.contrib.exported.package import PackageSession

        session: Any = PackageSession(path, str(device))
    else:
        session = open_onnx(path, str(device))
    if session.exported.part != "all":
        raise InputError(f"{path}: holds part {session.exported.part!r} of a network only: export all parts")
    # not by its outputs: a map of a custom head may be called `logits`, too
    make = ExportedClassifierModel if session.exported.kind == "classification" else ExportedModel
    return make(session, name, options)
