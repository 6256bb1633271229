"""The labels of Cityscapes as the classes of a dataset folder."""

from __future__ import annotations

from seamseg.cityscapes_labels import EVALUATED
from seamseg.data.metadata import Metadata


def cityscapes_classes() -> Metadata:
    """The classes of a Cityscapes dataset folder, without images."""
    num_thing = sum(label.has_instances for label in EVALUATED)
    return Metadata(
        num_stuff=len(EVALUATED) - num_thing,
        num_thing=num_thing,
        categories=[label.name for label in EVALUATED],
        palette=[label.color for label in EVALUATED],
        original_ids=[label.id for label in EVALUATED],
    )
