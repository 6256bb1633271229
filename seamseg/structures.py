"""Types shared by data, models and inference: PackedSequence, Batch, Things, Features.

Conventions (docs/design/concepts.md): boxes are `(y0, x0, y1, x1)` in pixels with an exclusive lower-right corner;
images are `C x H x W`; classes are stuff first, then things; 255 is void; id 0 of an id map is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree

from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import Prediction


class PackedSequence:
    """A typed list of related tensors, one an image, that may differ in size; absent entries are `None`.

    All tensors share dtype, device and number of dimensions. Light work iterates over it; heavy work calls
    :meth:`as_padded` (one tensor, padded at the bottom and right) or :meth:`concatenated`.

    Parameters
    ----------
    *tensors : Tensor or None, or one sequence of them
    """

    __slots__ = ("_tensors",)

    def __init__(self, *tensors: Tensor | Sequence[Tensor | None] | None) -> None:
        single = len(tensors) == 1 and isinstance(tensors[0], (list, tuple))
        items: list[Any] = list(tensors[0] if single else tensors)  # type: ignore[arg-type]
        first: Any = next((t for t in items if t is not None), None)
        for i, t in enumerate(items):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(f"PackedSequence: entry {i} is a {type(t).__name__}, not a tensor or None")
            if t is not None and (t.dtype, t.device, t.dim()) != (first.dtype, first.device, first.dim()):
                raise ValueError(
                    f"PackedSequence: entry {i} is {t.dtype} on {t.device} with {t.dim()} dimensions, "
                    f"others are {first.dtype} on {first.device} with {first.dim()}"
                )
        self._tensors: list[Tensor | None] = items

    @property
    def dtype(self) -> torch.dtype | None:
        """Data type of the entries, None if all of them are absent."""
        return next((t.dtype for t in self._tensors if t is not None), None)

    @property
    def device(self) -> torch.device | None:
        """Device of the entries, None if all of them are absent."""
        return next((t.device for t in self._tensors if t is not None), None)

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter(self._tensors)

    @overload
    def __getitem__(self, item: int) -> Tensor | None: ...

    @overload
    def __getitem__(self, item: slice) -> PackedSequence: ...

    def __getitem__(self, item: int | slice) -> Tensor | PackedSequence | None:
        if isinstance(item, slice):
            return PackedSequence(self._tensors[item])
        return self._tensors[item]

    def __repr__(self) -> str:
        inner = ", ".join("None" if t is None else "x".join(map(str, t.shape)) or "scalar" for t in self._tensors)
        return f"PackedSequence([{inner}], dtype={self.dtype}, device={self.device})"

    def map(self, function: Callable[[Tensor], Tensor]) -> PackedSequence:
        """Apply `function` to each entry that is present."""
        return PackedSequence([None if t is None else function(t) for t in self._tensors])

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Apply `Tensor.to` to each entry."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def pin_memory(self) -> PackedSequence:
        """Copy all entries to page-locked memory; DataLoader calls this when `pin_memory=True`."""
        return self.map(lambda t: t.pin_memory())

    def sizes(self) -> list[tuple[int, int]]:
        """Return `(height, width)`, the last two dimensions, of each entry; `(0, 0)` where it is absent."""
        return [(0, 0) if t is None else (int(t.shape[-2]), int(t.shape[-1])) for t in self._tensors]

    def as_padded(self, value: float = 0.0, multiple: int = 1) -> tuple[Tensor, list[tuple[int, int]]]:
        """Stack entries, padded at the bottom and right to the largest size (docs/contract.md "Batches").

        ValueError if all entries are absent.

        Parameters
        ----------
        value : fill of the padding and of absent entries
        multiple : round the padded height and width up to a multiple of this

        Returns
        -------
        padded : `N x ... x H x W`
        sizes : the valid `(height, width)` of each entry
        """
        first = next((t for t in self._tensors if t is not None), None)
        if first is None:
            raise ValueError("PackedSequence.as_padded: every entry is None")
        sizes = self.sizes()
        height, width = (-(-max(s[i] for s in sizes) // multiple) * multiple for i in (0, 1))
        rows = []
        for t in self._tensors:
            if t is None:
                rows.append(first.new_full((*first.shape[:-2], height, width), value))
            else:
                rows.append(functional.pad(t, (0, width - t.shape[-1], 0, height - t.shape[-2]), value=value))
        return torch.stack(rows), sizes

    def concatenated(self) -> tuple[Tensor | None, Tensor | None]:
        """Concatenate entries along the first dimension.

        Returns
        -------
        values : all rows, image after image, or None if all entries are absent
        index : int64, the image each row comes from
        """
        present = [(i, t) for i, t in enumerate(self._tensors) if t is not None]
        if not present:
            return None, None
        values = torch.cat([t for _, t in present])
        index = torch.cat([t.new_full((t.shape[0],), i, dtype=torch.long) for i, t in present])
        return values, index


def _unchecked(values: Iterable[Any], _: None) -> PackedSequence:
    # pytree functions rebuild containers around leaves that need not be tensors
    packed = PackedSequence.__new__(PackedSequence)
    packed._tensors = list(values)
    return packed


_pytree.register_pytree_node(
    PackedSequence, lambda p: (list(p), None), _unchecked, serialized_type_name="seamseg.PackedSequence"
)
_pytree.register_dataclass(Prediction)


class TargetInfo(NamedTuple):
    """Properties of the targets of an image, id by id, on the host.

    categories, iscrowd : see :class:`Batch`; present : whether the id has a box
    """

    categories: tuple[int, ...]
    iscrowd: tuple[bool, ...]
    present: tuple[bool, ...]


@dataclass(frozen=True)
class DeferredTransform:
    """Transforms of a training image that the device applies: flip and color jitter.

    `jitter` are factors of brightness, contrast and saturation and the shift of the hue in turns; None for none.
    """

    flip: bool = False
    jitter: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Batch:
    """Training images with their targets, made by :func:`seamseg.data.loader.collate`.

    `masks[i]` is `L x H x W` int64: L layers of instance ids, 0 void. The other targets are indexed by id, entry 0 is
    void: `categories[i]` int64 (255 for void), `iscrowd[i]` uint8, `boxes[i]` float32 `n x 4` (-1 where an id is
    absent from the mask).

    `target_info` repeats the small targets on the host, so that the host need not wait for a device to read them.
    :func:`seamseg.data.loader.collate` adds it. Boxes may change afterwards, but ids, classes and which boxes exist may
    not.

    With `deferred`, one an image, the images are uint8 `3 x H x W` and not normalised, and images, masks (of any
    integer type) and boxes are not flipped: :func:`seamseg.training.prefetch.prepare_batch` applies these
    transforms.

    `maps` are the ground truth that heads read by name, see :class:`seamseg.maps.folder.ReadMap`: `maps[name][i]` is
    `channels x H x W` float32, as it is after these transforms, with `fill` where there is none.
    """

    images: PackedSequence
    masks: PackedSequence
    categories: PackedSequence
    iscrowd: PackedSequence
    boxes: PackedSequence
    ids: list[str]
    original_sizes: list[tuple[int, int]]
    target_info: tuple[TargetInfo, ...] | None = None
    deferred: list[DeferredTransform] | None = None
    maps: Mapping[str, PackedSequence] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def with_target_info(self) -> Batch:
        """Return the batch with its `target_info`; if missing, it is read from the device in one transfer."""
        if self.target_info is not None:
            return self
        columns = []
        for categories, iscrowd, boxes in zip(self.categories, self.iscrowd, self.boxes, strict=True):
            assert categories is not None and iscrowd is not None and boxes is not None
            present = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
            columns.append(torch.stack((categories.long(), iscrowd.long(), present.long())))
        rows = [iter(row) for row in torch.cat(columns, dim=1).tolist()] if columns else []
        found = []
        for column in columns:
            classes, crowds, exist = (tuple(islice(row, column.shape[1])) for row in rows)
            found.append(TargetInfo(classes, tuple(map(bool, crowds)), tuple(map(bool, exist))))
        return replace(self, target_info=tuple(found))

    def _map(self, function: Callable[[PackedSequence], PackedSequence]) -> Batch:
        changed: dict[str, Any] = {
            f.name: function(getattr(self, f.name))
            for f in fields(self)
            if isinstance(getattr(self, f.name), PackedSequence)
        }
        return replace(self, **changed, maps={name: function(packed) for name, packed in self.maps.items()})

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """Apply `Tensor.to` to every tensor."""
        return self._map(lambda p: p.to(*args, **kwargs))

    def pin_memory(self) -> Batch:
        """Copy every tensor to page-locked memory."""
        return self._map(PackedSequence.pin_memory)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        for packed in (*(getattr(self, f.name) for f in fields(self)), *self.maps.values()):
            if isinstance(packed, PackedSequence):
                yield from (t for t in packed if t is not None)


@dataclass(frozen=True)
class FixedBatch(Batch):
    """A batch whose shapes alone decide what a step computes, and a tree of tensors for `torch.utils._pytree`.

    Rows of void are added to the targets by id. Names, original sizes and `target_info` are left out.
    """

    @staticmethod
    def of(batch: Batch, multiple: int) -> FixedBatch:
        """Return a batch after its deferred transforms with targets of one number of rows, a multiple of `multiple`."""
        if isinstance(batch, FixedBatch):
            return batch
        most = max((boxes.shape[0] for boxes in batch.boxes if boxes is not None), default=0)
        rows = -(-most // multiple) * multiple

        def padded(targets: PackedSequence, value: int) -> PackedSequence:
            return targets.map(lambda x: functional.pad(x, (*(0, 0) * (x.dim() - 1), 0, rows - len(x)), value=value))

        targets = padded(batch.categories, VOID), padded(batch.iscrowd, 0), padded(batch.boxes, -1)
        return FixedBatch(batch.images, batch.masks, *targets, ids=[], original_sizes=[], maps=dict(batch.maps))


_OF_TENSORS = ("images", "masks", "categories", "iscrowd", "boxes", "maps")
_pytree.register_pytree_node(
    FixedBatch,
    lambda batch: ([getattr(batch, name) for name in _OF_TENSORS], None),
    lambda parts, _: FixedBatch(**dict(zip(_OF_TENSORS, parts)), ids=[], original_sizes=[]),
)


@dataclass(frozen=True)
class Things:
    """The things of one image that the network is trained on.

    boxes `G x 4`, classes int64 `G` (0 = first thing), ids int64 `G`. Crowds, and ids that do not occur in the mask,
    are left out. `crowd` is a bool `H x W`, True on pixels of crowds, or for detection the boxes `C x 4` of the crowds
    of things; None if there is no crowd. `real` is a bool `G`, which rows are things: the boxes of others are outside
    of the image; None if all are.
    """

    boxes: Tensor
    classes: Tensor
    ids: Tensor
    crowd: Tensor | None
    real: Tensor | None = None

    @staticmethod
    def of(batch: Batch, num_stuff: int, crowd_boxes: bool = False) -> list[Things]:
        """Return the things of each image of a batch, whose class is at least `num_stuff`.

        With `crowd_boxes` crowds are boxes, and the batch needs no masks. Without `target_info` the host waits. A
        :class:`FixedBatch` has a row for each id, and crowds are a mask.
        """
        things = []
        if isinstance(batch, FixedBatch):
            targets: Any = zip(batch.masks, batch.categories, batch.iscrowd, batch.boxes)
            for masks, categories, iscrowd, boxes in targets:
                crowd, exists = iscrowd.bool(), (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
                real = (categories >= num_stuff) & (categories != VOID) & exists & ~crowd
                # of area 1, as the box code of an empty one is not finite
                outside = functional.pad(boxes.new_full((boxes.shape[0], 2), -2.0), (0, 2), value=-1.0)
                ids = torch.arange(boxes.shape[0], device=boxes.device)
                rows = torch.where(real[:, None], boxes, outside)
                things.append(Things(rows, categories - num_stuff, ids, crowd[masks].any(dim=0), real))
            return things
        target_info = batch.with_target_info().target_info
        assert target_info is not None
        chosen = [_ids_of_things(info, num_stuff, crowd=False) for info in target_info]
        device = batch.boxes.device
        assert device is not None
        # ids and classes of all images in one copy
        ids_of_all = [i for ids in chosen for i in ids]
        classes_of_all = [info.categories[i] for info, ids in zip(target_info, chosen) for i in ids]
        numbers = upload(torch.tensor([ids_of_all, classes_of_all], dtype=torch.long), device)
        parts = torch.split(numbers, [len(ids) for ids in chosen], dim=1)
        images = zip(batch.masks, batch.iscrowd, batch.boxes, target_info, parts)
        for masks, iscrowd, boxes, info, (ids, classes) in images:
            assert iscrowd is not None
            assert boxes is not None
            crowd = None
            if crowd_boxes and (crowds := _ids_of_things(info, num_stuff, crowd=True)):
                crowd = boxes[upload(torch.tensor(crowds), device)]
            elif not crowd_boxes and any(info.iscrowd):
                assert masks is not None
                crowd = iscrowd.bool()[masks].any(dim=0)
            things.append(Things(boxes[ids], classes - num_stuff, ids, crowd))
        return things


def _ids_of_things(info: TargetInfo, num_stuff: int, crowd: bool) -> list[int]:
    """Return the ids of things that have a box and are a crowd, or are not."""
    return [
        i
        for i, (category, is_crowd, has_box) in enumerate(zip(*info, strict=True))
        if category >= num_stuff and category != VOID and is_crowd == crowd and has_box
    ]


@dataclass(frozen=True)
class Features:
    """A batch after the body.

    levels `N x C x h x w` from fine to coarse; `padded_size` the `(height, width)` of the padded batch, `valid_sizes`
    of each image without its padding. `semantic_logits` `N x classes x h x w`, and `rpn_outputs` (objectness logits
    `N x A`, box codes `N x A x 4`, and the `(height, width)` of each level that has anchors) if they were computed
    together with the body.
    """

    levels: list[Tensor]
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
    semantic_logits: Tensor | None = None
    rpn_outputs: tuple[Tensor, Tensor, list[tuple[int, int]]] | None = None

    def rows(self, boxes: PackedSequence) -> tuple[Tensor, Tensor]:
        """Return all boxes of the batch, `K x 4`, and the image of each, int64 `K`; K is 0 where no image has any."""
        rows, index = boxes.concatenated()
        if rows is None or index is None:
            like = self.levels[0]
            return like.new_zeros((0, 4), dtype=torch.float32), like.new_zeros(0, dtype=torch.long)
        return rows, index


class Normalise:
    """Converts bytes to the values of the network input: `(x / 255 - mean) / std`, by channel; None omits one.

    The images are on `device`.
    """

    def __init__(
        self, rgb_mean: Sequence[float] | None, rgb_std: Sequence[float] | None, device: torch.device | str = "cpu"
    ) -> None:
        self._white = torch.tensor(255.0, device=device)
        self._mean, self._std = (
            None if numbers is None else torch.tensor(numbers, dtype=torch.float32, device=device)[:, None, None]
            for numbers in (rgb_mean, rgb_std)
        )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return `3 x H x W` float32, contiguous, from uint8 of any strides."""
        # divided by tensors, not by Python's numbers, which CUDA would turn into a product with the inverse
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(self._white)
        if self._mean is not None:
            values.sub_(self._mean)
        if self._std is not None:
            values.div_(self._std)
        return values


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device; the host does not wait for the copy."""
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
