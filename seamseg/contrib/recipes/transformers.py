"""Networks of transformers that are trained here: Mask2Former, MaskFormer, EoMT and EoMT-DINOv3.

Module and loss come from the library; images, ground truth, trainer, validation and prediction are ours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from seamseg.checkpoints.model_path import TRANSFORMERS_CONFIG_NAME, library_of, local_model, read_object
from seamseg.components import Network, NetworkContext, key, network
from seamseg.contrib.foreign.class_lists import ClassNames, NetworkClasses
from seamseg.contrib.foreign.families import OVERLAP_THRESHOLD, Family
from seamseg.contrib.foreign.transformers_model import (
    TransformersNetwork,
    built_by,
    column_names,
    family_of,
    load_network,
    make_plain,
    quiet,
    square_side,
)
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.structures import Batch, Normalise
from seamseg.utils.errors import InputError
from seamseg.utils.limits import parse_json

_TRAINED = ("mask2former", "maskformer", "eomt", "eomt_dinov3")
"""Types with a loss for masks and classes alone: OneFormer needs texts, DETR boxes."""


@dataclass(frozen=True)
class TransformersKeys:
    """Options of the section [network transformers]."""

    model: str = key(
        "folder of `save_pretrained`, or `hf://USER/REPO`, of a Mask2Former, MaskFormer, EoMT or EoMT-DINOv3: its "
        "architecture and weights; not needed any more once the training has begun",
        "",
    )
    pretrained: bool = key("start from the weights of `model`; no: from random ones", True)
    weight: float = key("weight of query_loss, the sum of the library's losses, in the total", 1.0, minimum=0)
    architecture: str = key("configuration of the network as JSON, which a training copies from `model`", "")


@network("transformers", keys=TransformersKeys)
class TransformersTraining(Network):
    """A panoptic network of transformers with its loss; it has the classes of the data set.

    EoMT is trained without masked attention, the end of its authors' schedule (arXiv 2503.19108, section 3.3).
    """

    losses: ClassVar[dict[str, str]] = {"query_loss": "weight"}
    defaults: ClassVar[dict[str, str]] = {
        "general.score_threshold": "0.8",
        "general.overlap_threshold": str(OVERLAP_THRESHOLD),
    }

    def __init__(self, keys: TransformersKeys, context: NetworkContext) -> None:
        super().__init__(keys, context)
        if not keys.architecture:
            raise InputError("[network transformers] model is required: the folder of a network, or hf://USER/REPO")
        name = "[network transformers] architecture"
        self.family, content = _checked(keys.architecture, name)
        self.side = square_side(content, name) if self.family.square else None
        self.num_classes = context.num_stuff + context.num_thing
        content["id2label"] = {str(number): f"class {number}" for number in range(self.num_classes)}
        with quiet() as transformers:
            model_class = getattr(transformers, self.family.model_class)
            config = built_by(name, lambda: model_class.config_class.from_dict(content))
            make_plain(config)
            self.net: Any = built_by(name, lambda: model_class(config))
        self._without_masked_attention()
        _in_full_precision(self.net.criterion)
        loading = context.config.dataloader
        self._black = [-mean / std for mean, std in zip(loading.rgb_mean, loading.rgb_std)]

    @staticmethod
    def completed(keys: TransformersKeys) -> TransformersKeys:
        """Return the keys with the architecture of `model`."""
        if not keys.model:
            return keys
        folder = _folder(keys.model)
        content = read_object(folder / TRANSFORMERS_CONFIG_NAME)
        for unused in ("id2label", "label2id"):
            content.pop(unused, None)
        text = json.dumps(content)
        _checked(text, keys.model)
        return replace(keys, architecture=text)

    def initialise(self, categories: Sequence[str]) -> str | None:
        """Copy the weights of `model`; the weights of classes by name."""
        if not self.keys.model or not self.keys.pretrained:
            return None
        folder = _folder(self.keys.model)
        stated = column_names(read_object(folder / TRANSFORMERS_CONFIG_NAME), self.keys.model)
        source = load_network(folder, self.family).state_dict()
        num_stuff, num_thing = self.context.num_stuff, self.context.num_thing
        count = len(categories)
        own = Metadata(num_stuff, num_thing, list(categories), [(0, 0, 0)] * count, list(range(count)))
        rows = {row: column for column, row in enumerate(ClassNames.of(own).match(stated)) if row is not None}
        rows[count] = len(stated)  # no object
        state, copied = self.net.state_dict(), 0
        for key_, value in state.items():
            if key_.startswith("criterion."):
                continue
            if key_.rpartition(".")[0].endswith("class_predictor"):
                value[list(rows)] = source[key_][list(rows.values())]
            elif value.shape == source[key_].shape:
                value.copy_(source[key_])
            copied += 1
        self._without_masked_attention()
        fresh = [name for row, name in enumerate(categories) if row not in rows]
        random = f"; random for {', '.join(fresh)}" if fresh else ""
        return f"weights of {self.keys.model}: {copied} tensors, {len(rows) - 1} of {count} classes by name{random}"

    @property
    def backbone(self) -> nn.Module | None:
        """The encoder of a Mask2Former or MaskFormer; an EoMT is one as a whole."""
        pixels = getattr(getattr(self.net, "model", None), "pixel_level_module", None)
        return None if pixels is None else pixels.encoder

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor | int]]:
        """Return the library's loss of a batch, with the number of images, by which several batches are weighted."""
        pixels, size = self._padded(batch)
        masks, classes = zip(*(self._targets(batch, index, size) for index in range(len(batch.images))))
        outputs = self.net(pixel_values=pixels, mask_labels=list(masks), class_labels=list(classes))
        return {"query_loss": (outputs.loss.reshape(()), len(masks))}

    def inference(self, normalise: Normalise, device: torch.device, dtype: torch.dtype) -> TransformersNetwork:
        """Return the network as others of transformers are run, with the merge of their papers."""
        classes = NetworkClasses(
            Metadata(self.context.num_stuff, self.context.num_thing, [], [], []), list(range(self.num_classes))
        )
        return TransformersNetwork(self.net, self.family, classes, normalise, device, dtype, self.side)

    def _without_masked_attention(self) -> None:
        if self.family.mask_annealing_buffer:
            getattr(self.net, self.family.mask_annealing_buffer).zero_()

    def _padded(self, batch: Batch) -> tuple[Tensor, tuple[int, int]]:
        """Return the input `N x 3 x H x W` and its size: the square, or the largest image, a multiple of 32."""
        if self.side is None:
            padded, _ = batch.images.as_padded(multiple=self.family.multiple)
            return padded, (int(padded.shape[-2]), int(padded.shape[-1]))
        sizes = batch.images.sizes()
        if (largest := max(max(size) for size in sizes)) > self.side:
            raise InputError(
                f"[dataloader] crop_size: an image has {largest} pixels, the input of this network is a square of "
                f"{self.side}: set crop_size = ({self.side}, {self.side})"
            )
        first = batch.images[0]
        assert first is not None
        black = torch.tensor(self._black, dtype=first.dtype, device=first.device)[:, None, None]
        padded = black.expand(3, self.side, self.side).repeat(len(batch.images), 1, 1, 1)
        for row, image, (height, width) in zip(padded, batch.images, sizes):
            row[:, :height, :width] = image  # type: ignore[assignment]
        return padded, (self.side, self.side)

    def _targets(self, batch: Batch, index: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return masks `n x H x W` and classes of the segments of an image: each thing, and each class of stuff."""
        ids, categories, crowd = batch.masks[index], batch.categories[index], batch.iscrowd[index]
        assert ids is not None
        assert categories is not None
        assert crowd is not None
        height, width = ids.shape[-2:]
        names = torch.where(categories < self.context.num_stuff, -1 - categories, torch.arange(len(categories)).to(ids))
        segments = names[(categories != VOID) & (crowd == 0)].unique()
        of_pixels = names[ids]
        masks = [(of_pixels == segment).any(0) for segment in segments]
        present = [i for i, mask in enumerate(masks) if bool(mask.any())]
        classes = torch.where(segments < 0, -1 - segments, categories[segments.clamp(min=0)])[present]
        stacked = torch.stack([masks[i] for i in present]) if present else ids.new_zeros((0, height, width))
        return functional.pad(stacked.float(), (0, size[1] - width, 0, size[0] - height)), classes


def _folder(model: str) -> Path:
    folder = Path(local_model(model))
    if library_of(folder) != "transformers":
        raise InputError(f"[network transformers] model = {model}: no folder of a network of transformers")
    return folder


def _checked(text: str, name: str) -> tuple[Family, dict[str, Any]]:
    """Return the family of an architecture and its content; InputError if it is none that is trained here."""
    try:
        content = parse_json(text.encode())
    except ValueError as error:
        raise InputError(f"{name}: not JSON ({error})") from None
    if not isinstance(content, dict) or "model_type" not in content:
        raise InputError(f"{name}: not the configuration of a network of transformers: it has no model_type")
    family = family_of(content, {}, name)
    if content["model_type"] not in _TRAINED:
        raise InputError(
            f"{name}: networks of type {content['model_type']} are not trained here: {', '.join(_TRAINED)}"
        )
    return family, content


def _in_full_precision(criterion: nn.Module) -> None:
    """Compute a loss in float32 also under autocast: its assignment of queries to segments needs numpy."""
    compute = criterion.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        def full(value: Any) -> Any:
            return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

        device = next(iter(criterion.buffers())).device
        with torch.autocast(device.type, enabled=False):
            return compute(*tree_map(full, args), **tree_map(full, kwargs))

    criterion.forward = forward  # type: ignore[method-assign]
