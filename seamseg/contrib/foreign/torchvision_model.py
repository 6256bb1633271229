"""A detector of torchvision, `torchvision:maskrcnn_resnet50_fpn_v2`, for a predictor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.checkpoints.imagenet import unwrapped
from seamseg.checkpoints.model_path import TORCHVISION, torchvision_name
from seamseg.checkpoints.snapshot import load_tensors
from seamseg.contrib.foreign.class_lists import identify_things, read_classes
from seamseg.contrib.foreign.families import DEFAULT_SIZE, ForeignNetwork, neutral_config
from seamseg.data.input_size import InputSize
from seamseg.inference.options import InferenceOptions
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import ArrayPrediction, Prediction
from seamseg.models.folding import choose_precision
from seamseg.results import Detections
from seamseg.structures import Normalise
from seamseg.utils.distributed import choose_device
from seamseg.utils.errors import InputError, SeamsegError, did_you_mean, one_line

KINDS = {
    "maskrcnn_resnet50_fpn_v2": "instance_seg",
    "maskrcnn_resnet50_fpn": "instance_seg",
    "fasterrcnn_resnet50_fpn_v2": "detection",
    "fasterrcnn_resnet50_fpn": "detection",
}
"""Kinds of the networks by their names in torchvision."""
_MULTIPLE = 32
_LAST_LAYER = "roi_heads.box_predictor.cls_score.bias"


class TorchvisionNetwork(ForeignNetwork):
    """A detector of torchvision; `classes` has the class of each label, from the first thing, -1 for none."""

    result_type = Detections
    net: Any  # a class of torchvision

    def __init__(
        self,
        net: nn.Module,
        kind: str,
        classes: np.ndarray,
        normalise: Normalise,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(net, normalise, device, dtype)
        self.kind = kind
        self.classes = classes
        self.nms_threshold = float(self.net.roi_heads.nms_thresh)

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """Return the outputs for images `H x W x 3` uint8, one by one: no result depends on other images."""
        return [self._run(image) for image in images]

    def _run(self, image: np.ndarray) -> ArrayPrediction:
        image_list = importlib.import_module("torchvision.models.detection.image_list")
        height, width = size = int(image.shape[0]), int(image.shape[1])
        # torch warns about arrays that are read-only
        pixels = torch.from_numpy(image if image.flags.writeable else image.copy()).to(self.device).permute(2, 0, 1)
        right, bottom = -width % _MULTIPLE, -height % _MULTIPLE
        with self.computing():
            batch = functional.pad(self.normalise(pixels), (0, right, 0, bottom))[None]
            features = self.net.backbone(batch)
            proposals, _ = self.net.rpn(image_list.ImageList(batch, [size]), features)
            # its masks are relative to the boxes, not pasted yet
            found = self.net.roi_heads(features, proposals, [size])[0][0]
        boxes, scores, labels = (_array(found[name]) for name in ("boxes", "scores", "labels"))
        classes = self.classes[labels.astype(np.int64)]
        # by class and falling score, without labels of no class
        order = np.lexsort((-scores, classes))
        order = order[classes[order] >= 0]
        masks = _array(found["masks"][:, 0].float().logit(1e-6))[order] if "masks" in found else None
        return Prediction(boxes[order][:, [1, 0, 3, 2]], classes[order], scores[order], masks, None, size)


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.float().cpu().numpy()
    return array


class TorchvisionModel:
    """A detector of torchvision that is opened; see :class:`seamseg.inference.predictor.OpenedModel`."""

    reference: InputSize | None = None

    def __init__(
        self, model: str | Path, device: str | torch.device, meta: str | Path | None, options: InferenceOptions
    ) -> None:
        self.name = str(model)
        self._network, file = torchvision_name(model)
        if self._network not in KINDS:
            known = [TORCHVISION + name for name in KINDS]
            meant = did_you_mean(TORCHVISION + self._network, known) or f"; supported are {', '.join(known)}"
            raise InputError(f"{self.name}: no such network{meant}")
        self.kind = KINDS[self._network]
        self._device = choose_device(device)
        self._dtype = choose_precision(options.precision, self._device)
        try:
            models = importlib.import_module("torchvision.models")
            self._models, published = models.detection, models.get_model_weights(self._network).DEFAULT
        except (ImportError, RuntimeError) as error:
            raise InputError(f"{self.name}: torchvision cannot be imported ({one_line(error)[:200]})") from None
        try:
            with redirect_stdout(sys.stderr):  # torchvision prints the address
                state = published.get_state_dict(progress=False, check_hash=True) if file is None else {}
        except (OSError, RuntimeError) as error:
            raise SeamsegError(
                f"{self.name}: torchvision cannot download its weights ({one_line(error)[:200]}): name a file, "
                f"{TORCHVISION}{self._network}?weights=FILE"
            ) from None
        self._state: Mapping[str, Any] = state if file is None else unwrapped(load_tensors(file, str(file)), str(file))
        last = self._state.get(_LAST_LAYER)
        if not isinstance(last, Tensor):
            raise InputError(f"{self.name}: the weights are not those of a {self._network}: {_LAST_LAYER} is missing")
        self.metadata, self._classes = self._identify(published.meta["categories"], len(last), meta)
        shortest, longest = DEFAULT_SIZE
        keys = {"dataloader.shortest_size": shortest, "dataloader.longest_max_size": longest}
        self.config = neutral_config(self.kind, keys, self.name, options)

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input, by default as its authors chose it."""
        return options.input_size_of_authors(self.config)

    def build(self, options: InferenceOptions) -> TorchvisionNetwork:
        """Build the network and load its weights."""
        make = getattr(self._models, self._network)
        net = make(weights=None, weights_backbone=None, num_classes=len(self._classes))
        try:
            net.load_state_dict(self._state)
        except RuntimeError as error:
            reason = one_line(error)[:200]
            raise InputError(f"{self.name}: the weights are not those of a {self._network}: {reason}") from None
        loading = self.config.dataloader
        normalise = Normalise(loading.rgb_mean, loading.rgb_std, self._device)
        return TorchvisionNetwork(net.eval(), self.kind, self._classes, normalise, self._device, self._dtype)

    def _identify(self, names: Sequence[str], count: int, meta: str | Path | None) -> tuple[Metadata, np.ndarray]:
        """Return the classes, and the class of each of the labels 0 (background), 1, ..."""
        if meta is None and count == len(names):
            return identify_things(names)
        labels = f"the weights have the labels 1 to {count - 1}"
        if meta is None:
            raise InputError(f"{self.name}: {labels}: give a class list with these ids with `meta=FILE`")
        metadata = read_classes(Path(meta))
        if sorted(metadata.original_ids) != list(range(1, count)) or metadata.num_stuff:
            raise InputError(f"{meta}: must list things with the ids of the network: {labels}")
        classes = np.full(count, -1)
        classes[metadata.original_ids] = np.arange(count - 1)
        return metadata, classes
