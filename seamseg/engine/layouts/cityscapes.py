"""Labels and names of Cityscapes."""

from __future__ import annotations

from dataclasses import replace

from seamseg.cityscapes_labels import LABEL_OF, LABELS
from seamseg.data.metadata import Metadata
from seamseg.data.prepare.cityscapes_labels import cityscapes_classes
from seamseg.errors import InputError

VOID_LABEL = 0
_PHOTO = "_leftImg8bit"


def with_label_ids(metadata: Metadata, source: str) -> Metadata:
    """The classes with Cityscapes' label ids as `original_ids`, without images.

    Classes are Cityscapes' by their names; failing that, all 19 by their `original_ids`.

    Parameters
    ----------
    metadata : of a model or a data set
    source : what they are of, for errors

    Raises
    ------
    InputError
        if a class is no label of Cityscapes, or is stuff on one side and a thing on the other
    """
    by_name = {label.name: label for label in LABELS}
    labels = [by_name.get(name.strip().lower()) for name in metadata.categories]
    if None in labels:
        official = cityscapes_classes()
        if sorted(metadata.original_ids) == sorted(official.original_ids):
            labels = [LABEL_OF[i] for i in metadata.original_ids]
    for index, (name, label) in enumerate(zip(metadata.categories, labels)):
        if label is None:
            raise InputError(
                f"{source}: {name!r} is no class of Cityscapes, so the format cityscapes cannot hold it; "
                "use the format coco"
            )
        if label.has_instances != metadata.is_thing(index):
            kinds = ("stuff", "a thing") if label.has_instances else ("a thing", "stuff")
            raise InputError(
                f"{source}: {name!r} is {kinds[0]} here but {kinds[1]} in Cityscapes, so the format cityscapes cannot "
                "hold it; use the format coco"
            )
    ids = [label.id for label in labels if label is not None]
    twice = next((k for k, i in enumerate(ids) if i in ids[:k]), None)
    if twice is not None:
        raise InputError(
            f"{source}: two classes are {metadata.categories[twice]!r}, which the format cityscapes cannot tell apart; "
            "use the format coco"
        )
    return replace(metadata.without_images(), original_ids=ids)


def frame_name(name: str) -> str:
    """`<city>_<sequence>_<frame>` of a photo: its name without folders and without `_leftImg8bit`."""
    return name.rpartition("/")[2].removesuffix(_PHOTO)


def city_of(frame: str) -> str:
    """The folder of a frame: what stands before its first `_`, `unknown` where that is no name for a folder."""
    city, underscore, _ = frame.partition("_")
    return city if underscore and city and not city.startswith(".") else "unknown"
