"""Items of a data set → one :class:`seamseg.structures.Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seamseg.structures import Batch, PackedSequence


def collate(items: Sequence[dict[str, Any]]) -> Batch:
    """Gather items of :class:`seamseg.data.dataset.PanopticDataset`, as a DataLoader's `collate_fn`.

    Nothing is padded here: sizes may differ, and the network pads when it needs one tensor.
    """
    masks = [item["msk"] for item in items]
    if len({mask.dtype for mask in masks}) > 1:
        masks = [mask.int() for mask in masks]  # few ids are held in bytes
    return Batch(
        images=PackedSequence([item["img"] for item in items]),
        masks=PackedSequence(masks),
        categories=PackedSequence([item["cat"] for item in items]),
        iscrowd=PackedSequence([item["iscrowd"] for item in items]),
        boxes=PackedSequence([item["bbx"] for item in items]),
        ids=[item["id"] for item in items],
        original_sizes=[item["size"] for item in items],
        pending=[item["pending"] for item in items] if "pending" in items[0] else None,
        broken=[broken for item in items for broken in item.get("broken", ())],
    ).with_facts()
