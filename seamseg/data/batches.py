"""Items of a data set → one :class:`seamseg.structures.Batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seamseg.structures import Batch, PackedSequence


def collate(items: Sequence[dict[str, Any]]) -> Batch:
    """Gather items of :class:`seamseg.data.dataset.PanopticDataset`, as a DataLoader's `collate_fn`.

    Nothing is padded or copied here: sizes may differ, and the network pads when it needs one tensor.
    """
    return Batch(
        images=PackedSequence([item["img"] for item in items]),
        masks=PackedSequence([item["msk"] for item in items]),
        categories=PackedSequence([item["cat"] for item in items]),
        iscrowd=PackedSequence([item["iscrowd"] for item in items]),
        boxes=PackedSequence([item["bbx"] for item in items]),
        ids=[item["id"] for item in items],
        original_sizes=[item["size"] for item in items],
    ).with_facts()
