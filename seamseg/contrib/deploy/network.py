"""Networks for export: one module from an image to outputs of fixed sizes, without data-dependent shapes.

A module takes one padded image and its valid size, and computes what :meth:`PanopticNet.predict` and
:meth:`SemanticNet.predict` compute for it (docs/contract.md, section 4). Images without detections are no special
case: all outputs have as many rows as there can be detections, and `count` states how many of them exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.maps.formats.exported import QUERY_OUTPUTS
from seamseg.models.custom import WholeNetwork, predicted_maps
from seamseg.models.panoptic import DenseOutputs, PanopticNet
from seamseg.models.semantic import SemanticNet
from seamseg.ops.nms import best_scores, nms_fixed
from seamseg.ops.upsample import upsample_argmax
from seamseg.structures import Features, PackedSequence
from seamseg.utils.errors import SeamsegError, lacks_memory, one_line
from seamseg.utils.output import quiet_logs


class ExportNet(nn.Module):
    """A network for export with its normalisation, made by :func:`export_net`: `uint8` image in, fixed sizes out.

    With `batches` it takes normalised images in place of one image and its size.
    """

    batches: ClassVar[bool] = False
    output_names: tuple[str, ...]

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float], standard_ops: bool = False) -> None:
        super().__init__()
        self.net = net
        self.standard_ops = standard_ops
        self.mean: Tensor
        self.std: Tensor
        self.white: Tensor
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32)[:, None, None])
        # divided by a tensor, as in the eager path, not multiplied by the inverse
        self.register_buffer("white", torch.tensor(255.0))

    def normalise(self, image: Tensor, size: Tensor) -> Tensor:
        """Return the input of the network for an image `1 x 3 x H x W` uint8; beyond `size` (int64 `2`) it is 0."""
        values = torch.where(valid_pixels(image, size), self.standardise(image), 0.0)
        return values.to(next(self.net.parameters()).dtype, memory_format=torch.channels_last)

    def standardise(self, image: Tensor) -> Tensor:
        """Return the normalised values, float32, of a `uint8` image `1 x 3 x H x W`; also of its padding."""
        return (image.float() / self.white - self.mean) / self.std


class DetectionExport(ExportNet):
    """Networks of kind panoptic, instance_seg and detection.

    `forward` maps `image` and `size`, see :meth:`ExportNet.normalise`, to

    boxes : float32 `K x 4`, `(y0, x0, y1, x1)` in pixels of the input; K is `[roi] max_predictions`
    classes : int64 `K`, 0 = first thing
    scores : float32 `K`
    mask_logits : float32 `K x 28 x 28`, for kinds with masks
    count : int64 scalar, the number of detections: rows from there on are 0
    classmap : uint8 `H x W`, for kind panoptic
    maps of custom heads under their names, float32 or integers, `H x W`, or `channels x H x W` of several channels
    """

    net: PanopticNet

    def __init__(self, net: PanopticNet, *arguments: Any, **options: Any) -> None:
        super().__init__(net, *arguments, **options)
        proposals, most = net.options.proposals.config.num_post_nms_val, net.options.selector.config.max_predictions
        self.rows = min(most, proposals * net.roi_head.num_things)
        # the anchors of the first cell of each level
        strides, ratios = net.options.anchors.strides, len(net.options.proposals.config.anchor_ratios)
        cells = net.options.anchors(((1, 1),) * len(strides), torch.device("cpu"))
        for i, cell in enumerate(cells.split(ratios)):
            self.register_buffer(f"cell{i}", cell.clone())
        masks, classmap = ("mask_logits",) * net.roi_head.with_masks, ("classmap",) * (net.sem_head is not None)
        self.output_names = ("boxes", "classes", "scores", *masks, "count", *classmap, *net.map_formats)

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        dense = self.net.dense(self.normalise(image, size))
        padded_size: Any = (image.shape[2], image.shape[3])
        features = Features(dense.levels, padded_size, [padded_size], dense.semantic_logits)
        limit = torch.cat((size, size)).float()
        boxes, classes, scores, count = self.select(features, limit, *self.propose(dense, limit))
        outputs = [boxes, classes, scores]
        if self.net.roi_head.with_masks:
            (masks,) = self.net.mask(features, [boxes], [classes])
            assert masks is not None
            exists = torch.arange(self.rows, device=boxes.device) < count
            outputs.append(torch.where(exists[:, None, None], masks, 0.0))
        outputs.append(count)
        if dense.semantic_logits is not None:
            outputs.append(upsample_argmax(dense.semantic_logits[0], padded_size, padded_size).to(torch.uint8))
        (maps,) = predicted_maps(self.net.custom_heads, features)
        return (*outputs, *(maps[name] for name in self.net.map_formats))

    def propose(self, dense: DenseOutputs, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Return proposals `P x 4`, rows of 0 at the end, and which exist, bool `P`, as `ProposalGenerator` does."""
        make, generator = self.net.options.proposals, self.net.options.anchors
        cells = [getattr(self, f"cell{i}") for i in range(len(generator.strides))]
        levels = zip(generator.strides, dense.shapes, cells, strict=True)
        anchors = torch.cat([generator.level_anchors(*level) for level in levels])
        scores, codes = dense.obj_logits[0].float(), dense.bbx_logits[0].float()
        if not isinstance(scores.shape[0], int):
            # of a free size, there may be fewer anchors than proposals are chosen from
            missing = (0, 0, 0, make.config.num_pre_nms_val)
            anchors, codes = functional.pad(anchors, missing), functional.pad(codes, missing)
            scores = functional.pad(scores, missing[2:], value=-torch.inf)
        boxes, scores, _ = make.candidates(scores, codes, anchors, limit, make.config.num_pre_nms_val, self._best)
        # NMS is one operator here, for other engines; in the network it treats all images of a batch at once
        kept, _ = self._nms(boxes[None], scores[None], make.config.nms_threshold, make.config.num_post_nms_val)
        exists = kept >= 0
        return torch.where(exists[:, None], boxes[kept.clamp(min=0)], 0.0), exists

    def select(
        self, features: Features, limit: Tensor, proposals: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return boxes, classes, scores and number of the detections, as `PanopticNet.detect` does."""
        selector, rows = self.net.options.selector, self.rows
        ((boxes, scores),) = self.net.score_proposals(features, PackedSequence([proposals]), [limit])
        # class by class, without the background
        boxes, scores = boxes.transpose(0, 1), scores[:, 1:].t()
        # of fixed size; the network reads how many boxes are usable, as NMS of all on a GPU would take gigabytes
        usable = (scores > selector.config.score_threshold) & (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)
        scores = torch.where(usable & exists, scores, -torch.inf)
        kept, total = self._nms(boxes, scores, selector.config.nms_threshold, rows)

        # by class, unless some are left out; rows without a detection last
        place = torch.arange(rows, device=kept.device)
        count = total.clamp(max=rows)
        things, proposed = scores.shape
        key = torch.where(total > rows, 0, kept.clamp(min=0) // proposed)
        key = torch.where(place < count, key, things)
        kept = kept[torch.sort(key * rows + place).indices]
        exists, kept = place < count, kept.clamp(min=0)
        return (
            torch.where(exists[:, None], boxes.flatten(0, 1)[kept], 0.0),
            torch.where(exists, kept // proposed, 0),
            torch.where(exists, scores.flatten()[kept], 0.0),
            count,
        )

    def _best(self, scores: Tensor, count: int) -> Tensor:
        """Return what :func:`seamseg.ops.nms.best_scores` does for a positive count."""
        if not self.standard_ops:
            return best_scores(scores, count)
        # the TopK of ONNX prefers the lower index among equal scores; that of torch promises nothing
        total = scores.shape[0]
        # not their minimum, which stays symbolic for a free size
        return torch.topk(scores, count if count < total else total).indices

    def _nms(self, boxes: Tensor, scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor]:
        """Suppress boxes `G x N x 4` within each group; return numbers in `G * N`, then -1, and how many there are."""
        if self.standard_ops:
            found: tuple[Tensor, Tensor] = torch.ops.seamseg_deploy.nms(boxes, scores, threshold, most)
            return found
        return _grouped_nms(boxes, scores, threshold, most)


class SemanticExport(ExportNet):
    """Networks of kind semantic.

    `forward` maps `image` and `size`, see :meth:`ExportNet.normalise`, to

    classmap : uint8 `H x W`
    probability : uint8 `H x W`, 255 times the probability of the class, rounded down
    """

    net: SemanticNet
    output_names = ("classmap", "probability")

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        logits = self.net.dense(self.normalise(image, size))
        padded_size: Any = (image.shape[2], image.shape[3])
        classes = upsample_argmax(logits[0], padded_size, padded_size)
        pixels = functional.interpolate(logits.float(), size=padded_size, mode="bilinear", align_corners=False)[0]
        probability = torch.softmax(pixels, dim=0).amax(dim=0)
        return classes.to(torch.uint8), (probability * 255).to(torch.uint8)


class WholeExport(ExportNet):
    """Networks as a whole: the outputs of their kind, and their maps, from `predict` of the padded image.

    `classmap`, `probability`, `count`, maps and ids are as in :class:`DetectionExport` and :class:`SemanticExport`.
    """

    net: WholeNetwork

    def __init__(self, net: WholeNetwork, *arguments: Any, **options: Any) -> None:
        super().__init__(net, *arguments, **options)
        names = list(net.result_type.outputs)
        if net.has_masks:
            names.insert(names.index("count"), "mask_logits")
        self.output_names = (*names, *net.map_formats, *("ids",) * net.predicts_ids)

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        (found,) = self.net.predict(PackedSequence(self.normalise(image, size)[0]))
        outputs: dict[str, Tensor | None] = dict(found.maps)
        if "probability" in self.output_names and "probability" in outputs:
            outputs["probability"] = (found.maps["probability"] * 255).to(torch.uint8)
        if found.semantic is not None:
            outputs["classmap"] = found.semantic.to(torch.uint8)
        if "count" in self.output_names:
            boxes, masks = found.boxes.float(), found.mask_logits
            if masks is None:  # with ids
                masks = boxes.new_zeros((boxes.shape[0], 1, 1))
            outputs |= {"boxes": boxes, "classes": found.classes.long(), "scores": found.scores.float()}
            outputs |= {"mask_logits": masks.float(), "count": torch.full((), boxes.shape[0], dtype=torch.int64)}
        missing = [name for name in self.output_names if outputs.get(name) is None]
        if missing:
            raise SeamsegError(f"network {self.net.name}: predict() returns no {missing[0]}, which exported files have")
        return tuple(outputs[name] for name in self.output_names)  # type: ignore[misc]


class DenseExport(ExportNet):
    """Pyramid, RPN outputs and semantic logits of a network, for engines without the operators of the rest.

    `forward` maps `image` and `size`, see :meth:`ExportNet.normalise`, to `level0`, ... (`1 x C x h x w`, fine to
    coarse), `obj_logits` `1 x A`, `bbx_logits` `1 x A x 4` and, for kind panoptic, `semantic_logits`
    `1 x classes x h x w`; for kind semantic to `semantic_logits` alone.
    """

    net: PanopticNet | SemanticNet

    def __init__(self, net: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(net, *arguments, **options)
        if net.nms_threshold is None:
            self.output_names = ("semantic_logits",)
            return
        fpn, semantic = net.body.fpn, ("semantic_logits",) * (net.sem_head is not None)
        levels = (f"level{i}" for i in range(len(fpn.output) + fpn.extra_scales))
        self.output_names = (*levels, "obj_logits", "bbx_logits", *semantic)

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        dense = self.net.dense(self.normalise(image, size))
        if isinstance(dense, Tensor):
            return (dense,)
        semantic = () if dense.semantic_logits is None else (dense.semantic_logits,)
        return (*dense.levels, dense.obj_logits, dense.bbx_logits, *semantic)


class ClassifierExport(ExportNet):
    """Classifiers: `forward` maps `image`, normalised float32 `N x 3 x H x W`, to `logits`, float32 `N x classes`."""

    batches = True
    output_names = ("logits",)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Map normalised images to the logits."""
        dtype = next(self.net.parameters()).dtype
        return (self.net(image.to(dtype, memory_format=torch.channels_last)).float(),)


class QueryExport(ExportNet):
    """Panoptic networks of queries, one class and one mask each.

    `forward` maps `image` and `size`, see :meth:`ExportNet.normalise`, to

    class_logits : float32 `Q x (C + 1)`, the last one of "no object"
    mask_logits : float32 `Q x h x w`, of the whole input
    """

    output_names = QUERY_OUTPUTS

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        found: tuple[Tensor, Tensor] = self.net(image, valid_pixels(image, size), self.standardise)
        return found


def _export_class(net: Any, part: str) -> type[ExportNet]:
    if hasattr(net, "query_classes"):
        return QueryExport
    if part == "dense":
        return DenseExport
    if not getattr(net, "of_parts", True):
        return WholeExport
    if not getattr(net, "dense_parts", ()):  # the body alone: a classifier
        return ClassifierExport
    return SemanticExport if net.nms_threshold is None else DetectionExport


def export_net(
    net: nn.Module,
    mean: Sequence[float],
    std: Sequence[float],
    part: str = "all",
    standard_ops: bool = False,
) -> ExportNet:
    """Return the module that is exported; `part` is "all" or "dense", `standard_ops` without operators of ours."""
    made = _export_class(net, part)(net, mean, std, standard_ops)
    # also the constants that were made here
    return made.eval().to(next(net.parameters()).device)


def example_inputs(net: ExportNet, size: tuple[int, int]) -> dict[str, Tensor]:
    """Return inputs of a module from :func:`export_net` by name, of `(height, width)`: an image of noise."""
    device = next(net.parameters()).device
    generator = torch.Generator().manual_seed(0)
    if net.batches:
        return {"image": torch.randn((1, 3, *size), generator=generator).to(device)}
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=generator)
    return {"image": image.to(device), "size": torch.tensor(size, dtype=torch.int64, device=device)}


@contextmanager
def failures_in_one_line(problem: str, net: ExportNet | None = None, free: bool = False) -> Iterator[None]:
    """Raise SeamsegError `problem (reason)` for errors of a tracer or compiler, but for a lack of memory."""
    heads = {} if net is None else getattr(net.net, "custom_heads", {})
    if heads:
        problem += f" with the heads {', '.join(heads)}: leave out their file of `components`"
    if free:
        problem += ", or choose a `size`" if heads else " in a free size: try a `size`"
    try:
        yield
    except Exception as error:
        if lacks_memory(error):
            raise
        # an error of a head or network has its name, file and line
        reason, first = str(error), cast("BaseException", error)
        if not isinstance(error, SeamsegError):
            while first.__cause__ is not None:
                first = first.__cause__
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(first))
            reason = one_line(f"{type(first).__name__}: {text}").rstrip(": ")[:300]
        raise SeamsegError(f"{problem} ({reason})") from error


def trace(
    net: ExportNet, size: tuple[int, int], multiple: int, sides: tuple[int, int] | None
) -> torch.export.ExportedProgram:
    """Trace with an input of `size`; with `sides` height and width are free multiples of `multiple` between them."""
    inputs = example_inputs(net, size)
    if sides is not None and net.batches:
        # an example of one image would fix their number
        inputs["image"] = inputs["image"].repeat(2, 1, 1, 1)
    # an error has all that is logged about it
    with torch.no_grad(), quiet_logs("torch.fx", "torch.export", "torch._export"):
        return torch.export.export(net, tuple(inputs.values()), dynamic_shapes=dynamic_shapes(net, multiple, sides))


def dynamic_shapes(net: ExportNet, multiple: int, sides: tuple[int, int] | None) -> dict[str, Any] | None:
    """Return the free dimensions of the inputs for `torch.export`; arguments as of :func:`trace`."""
    if sides is None:
        return None
    least, most = -(-sides[0] // multiple), sides[1] // multiple
    height, width = (multiple * torch.export.Dim(name, min=least, max=most) for name in ("height", "width"))
    if net.batches:
        return {"image": {0: torch.export.Dim("batch", max=1024), 2: height, 3: width}}
    return {"image": {2: height, 3: width}, "size": None}


def valid_pixels(image: Tensor, size: Tensor) -> Tensor:
    """Return which pixels `H x W` of a padded image are within its size."""
    rows, columns = (torch.arange(side, device=image.device) for side in image.shape[2:])
    return (rows < size[0])[:, None] & (columns < size[1])


def _grouped_nms(boxes: Tensor, scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor]:
    groups, number = scores.shape
    boxes, scores = boxes.reshape(-1, 4), scores.reshape(-1)
    usable = scores > -torch.inf
    group = torch.arange(groups, device=boxes.device).repeat_interleave(number)
    # boxes that do not take part form a group of their own, in which all but one suppress each other
    group = torch.where(usable, group, groups)
    unit_box = torch.cat((torch.zeros_like(boxes[:1, :2]), torch.ones_like(boxes[:1, :2])), dim=1)
    boxes = torch.where(usable[:, None], boxes, unit_box)
    kept, _ = nms_fixed(boxes, scores, threshold, most, group)
    exists = (kept >= 0) & usable[kept.clamp(min=0)]
    kept = torch.where(exists, kept, -1)
    if kept.shape[0] < most:
        kept = functional.pad(kept, (0, most - kept.shape[0]), value=-1)
    return kept[:most], exists.sum()


@torch.library.custom_op("seamseg_deploy::nms", mutates_args=())
def _standard_nms(boxes: Tensor, scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor]:
    """Do what :func:`_grouped_nms` does, as one operator for the translation to other formats."""
    return _grouped_nms(boxes, scores, threshold, most)


@_standard_nms.register_fake
def _(boxes: Tensor, scores: Tensor, threshold: float, most: int) -> tuple[Tensor, Tensor]:
    return scores.new_empty((most,), dtype=torch.int64), scores.new_empty((), dtype=torch.int64)
