"""The outputs of a network for one image, and the interface of networks that predict; no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A", "Tensor", np.ndarray)

RESERVED_NAMES = frozenset(
    (
        *("overlay", "coco", "raw", "cityscapes", "vistas", "cvat", "labelstudio", "labels", "ids", "probabilities"),
        *("json", "csv", "png", "view", "prediction", "truth", "errors", "photo"),
        *("image", "size", "boxes", "classes", "scores", "mask_logits", "count", "classmap"),
        *("sem_pred", "bbx_pred", "cls_pred", "obj_pred", "msk_pred", "facts", "id_map", "masks", "probability"),
    )
)
"""Names which no map may have: of formats, of views, of inputs and outputs of exported networks, of arrays in files."""

MANIFEST = "predictions.jsonl"
"""The file of an output folder of `predict` with the settings, then a line for each image."""
_MOST_CHANNELS = 1024


@dataclass(frozen=True)
class MapFormat:
    """How an output map of a head is resized, merged and saved.

    Attributes
    ----------
    channels : number of channels
    resize : bilinear or nearest
    tiles : how the maps of overlapping tiles are merged: mean, or core, from the tile whose edge is farthest
    mirror : factor of each channel in a mirrored image, -1 for the horizontal part of a vector; None for no change
    scale : a PNG file holds the values times this, rounded and clipped
    bits : bits of a pixel of that file, 8 or 16
    values : what enlarging an image does to what the network predicts: none, multiply (lengths in pixels of its input)
        or divide (distances from the camera), as `scale` of :class:`seamseg.maps.folder.ReadMap`. Maps of predictions
        and results have the units of the files, in pixels of the image. `mirror` and `values` that are None are those
        of the ground truth that is read under the same name, if there is any

    Raises
    ------
    ValueError
        if a value is none of these, or `mirror` has another length
    """

    channels: int = 1
    resize: str = "bilinear"
    tiles: str = "mean"
    mirror: tuple[float, ...] | None = None
    scale: float = 255.0
    bits: int = 8
    values: str | None = None

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[object, ...]] = {
            "resize": ("bilinear", "nearest"),
            "tiles": ("mean", "core"),
            "bits": (8, 16),
            "values": (None, "none", "multiply", "divide"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"Map: {name} must be one of {values}, not {getattr(self, name)!r:.40}")
        if type(self.channels) is not int or not 1 <= self.channels <= _MOST_CHANNELS:
            raise ValueError(f"Map: channels must be 1 to {_MOST_CHANNELS}, not {self.channels!r:.40}")
        if self.mirror is not None and len(self.mirror) != self.channels:
            raise ValueError(
                f"Map: mirror needs a factor for each of {self.channels} channels, got {self.mirror!r:.80}"
            )
        if not all(type(x) in (int, float) and math.isfinite(x) for x in (self.scale, *(self.mirror or ()))):
            raise ValueError(f"Map: scale {self.scale!r:.40} and mirror {self.mirror!r:.80} must be numbers")

    @property
    def ending(self) -> str:
        """Ending of its file: .png, or .npy if a PNG cannot hold the channels, float32 `channels x H x W`."""
        return ".png" if self.channels == 1 or (self.channels == 3 and self.bits == 8) else ".npy"


def name_problem(name: object) -> str | None:
    """Return why a map cannot have a name, for a message; None if it can."""
    if not (isinstance(name, str) and name.isascii() and name.isidentifier() and name == name.lower()):
        return f"{name!r:.80}: a name has lower-case letters, digits and underscores, no digit first"
    return f"{name}: the name has another meaning: choose another" if name in RESERVED_NAMES else None


@dataclass(frozen=True)
class QueryMasks:
    """Masks of a network that predicts a set of them, one class and one mask a query (MaskFormer, arXiv 2107.06278).

    Only queries whose best class is an object are kept: `classes`, `K` int64, the best class (stuff first), and
    `scores`, `K` float32, its probability. `mask_logits` are `K x h x w` float32 of the whole padded input of
    `padded_size`, `(height, width)`, whose upper left part is the image.
    """

    classes: np.ndarray
    scores: np.ndarray
    mask_logits: np.ndarray
    padded_size: tuple[int, int]


@dataclass(frozen=True)
class Prediction(Generic[A]):
    """Outputs of the network for one image, in pixels of its input (the valid, unpadded part).

    Networks return tensors on their device, `Prediction[Tensor]`. A predictor returns arrays, :data:`ArrayPrediction`,
    which all steps after the network take. Outputs that a network does not have are None.

    Attributes
    ----------
    boxes, classes, scores, mask_logits : `K x 4`, `K` (int64, 0 = first thing), `K`, `K x h x w` (28 x 28, of
        queries 112 x 112), in the order of docs/contract.md, section 4 "Detections"
    semantic : `H x W` class map, int64 from the network, uint8 from a predictor
    size : `(height, width)`
    logits : one a class, of a classifier
    maps : further maps by name, `H x W` or `channels x H x W`: the outputs of custom heads; `probability` of the class
        of each pixel, float from the network, from a predictor uint8, 255 times it, rounded down; and `ids` of a
        network as a whole: the things in place of masks, `k` where row `k - 1` of the detections is
    queries : masks that make the panoptic map, in place of detections and class map; None for networks without queries,
        and for an image that was processed in tiles
    semantic_on_gpu : the array `semantic`, and the same map as a uint8 tensor on the GPU, where
        :func:`seamseg.fusion.fuse` then merges it if `semantic` is still that array; None if there is none. Set it to
        None before you change the array in place
    """

    boxes: A
    classes: A
    scores: A
    mask_logits: A | None
    semantic: A | None
    size: tuple[int, int]
    logits: A | None = None
    maps: Mapping[str, A] = field(default_factory=dict)
    queries: QueryMasks | None = None
    semantic_on_gpu: tuple[np.ndarray, Tensor] | None = None

    def on_cpu(self) -> ArrayPrediction:
        """Return the outputs as numpy arrays, without memory of a GPU: float32, class map and probability as uint8.

        Arrays are returned as they are.
        """
        if isinstance(self.scores, np.ndarray):
            arrays = cast(ArrayPrediction, self)
            return arrays if self.semantic_on_gpu is None else replace(arrays, semantic_on_gpu=None)
        p = cast("Prediction[Tensor]", self)
        floats: dict[str, Any] = {
            name: None if (x := getattr(p, name)) is None else x.detach().float().cpu().numpy()
            for name in ("boxes", "scores", "mask_logits", "logits")
        }
        maps = dict(p.maps)
        if "probability" in maps and maps["probability"].is_floating_point():
            maps["probability"] = (maps["probability"] * 255).byte()
        return Prediction(
            **floats,
            classes=p.classes.long().cpu().numpy(),
            semantic=None if p.semantic is None else p.semantic.byte().cpu().numpy(),
            size=p.size,
            maps={name: x.cpu().numpy() for name, x in maps.items()},
            queries=p.queries,
        )

    def rows(self, kept: np.ndarray) -> ArrayPrediction:
        """Return the prediction, of arrays, with some detections, numbers `M`, in their order."""
        p = self.on_cpu()
        maps = dict(p.maps)
        if "ids" in maps:
            number = np.zeros(len(p.scores) + 1, np.int32)
            number[kept + 1] = np.arange(1, len(kept) + 1)
            maps["ids"] = number[maps["ids"]]
        masks = None if p.mask_logits is None else p.mask_logits[kept]
        return replace(
            p, boxes=p.boxes[kept], classes=p.classes[kept], scores=p.scores[kept], mask_logits=masks, maps=maps
        )

    def copy(self) -> ArrayPrediction:
        """Return arrays of their own, see :meth:`on_cpu`: slices would keep the memory of a whole batch alive."""
        p = self.on_cpu()
        masks, semantic, logits = (None if a is None else a.copy() for a in (p.mask_logits, p.semantic, p.logits))
        maps = {name: values.copy() for name, values in p.maps.items()}
        boxes, classes, scores = p.boxes.copy(), p.classes.copy(), p.scores.copy()
        return Prediction(boxes, classes, scores, masks, semantic, p.size, logits, maps, p.queries)


ArrayPrediction: TypeAlias = Prediction[np.ndarray]
"""The outputs as numpy arrays."""


class InferenceNetwork(ABC):
    """A trained network, whatever executes it: what a predictor runs.

    Attributes
    ----------
    kind : what it predicts, as in `[general] kind`
    result_type : the :class:`seamseg.results.base.ImageResult` that a predictor makes of its outputs
    precision : name of the compute dtype, as `float32`
    device : device that it computes on, for messages
    on_gpu : whether that is a GPU
    uses_torch : whether torch executes it
    averaged : whether its weights are a moving average of the weights in training
    nms_threshold : IoU from which a detection suppresses others; None for a network without detections
    tiles_problem : why images cannot be processed in tiles; None if they can
    map_formats : formats of the output maps of custom heads by name
    concurrent : whether several threads may run it at a time, each in one thread of torch
    """

    kind: str
    result_type: type[Any]
    precision: str
    device: Any
    on_gpu: bool = False
    uses_torch: bool = True
    concurrent: bool = False
    averaged: bool = False
    nms_threshold: float | None = None
    tiles_problem: str | None = None
    map_formats: Mapping[str, MapFormat] = MappingProxyType({})

    @abstractmethod
    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """Return the outputs, as arrays.

        Parameters
        ----------
        images : `H x W x 3` uint8, at the size of the network's input
        least_score : detections that do not score above may be left out
        """

    def start(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[Callable[[], ArrayPrediction]]:
        """Start what :meth:`run` computes; return a function for each image that waits for its outputs, in any thread.

        On a GPU further images can be started meanwhile.
        """
        return [partial(lambda p: p, p) for p in self.run(images, least_score)]

    def begin_thread(self) -> None:
        """Prepare the current thread to make results beside the network, without waiting for it."""
        return
