"""The metadata of an exported network: one JSON text inside the file, all that is needed to use it without a snapshot.

It is stored under the key :data:`METADATA_KEY`, in the `metadata_props` of ONNX and in the metadata of an AOTInductor
package. Packages of panoptic networks also have plain texts, for C++ programs (:mod:`seamseg.contrib.deploy.aoti`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from seamseg.maps.formats.metadata import Metadata, metadata_header, metadata_of
from seamseg.maps.predictions import MapFormat, name_problem
from seamseg.utils.errors import InputError, one_line
from seamseg.version import __version__

METADATA_KEY = "seamseg"
"""Name of the text in a file."""
FORMAT = 1
"""Version of the text; a reader refuses files of another one."""
QUERY_OUTPUTS = ("class_logits", "mask_logits")
"""Names of the outputs of panoptic networks of queries, see :attr:`ExportedMetadata.query_classes`."""
MAX_EXAMPLE_SIDE = 4096
"""Largest side of packages of free size, and of the images that files are made with."""
CLASSIFIER_SIDES = (64, 4096)
"""Smallest and largest side of a classifier of free size."""

MAX_SIDE = 1 << 14
"""Largest side of other files of free size: an image of these sides has 768 MiB."""


@dataclass(frozen=True)
class ExportedMetadata:
    """The facts about its network that an exported file holds.

    Parameters
    ----------
    config : INI text of the network, all overrides applied; JSON text of the configuration for classification
    metadata : the classes, without images; those of a classifier are things and have names only
    size : `(height, width)` of the input; None if both are free
    multiple, sides : free heights and widths are multiples of this, from the smallest to the largest side
    part : "all", or "dense": pyramid levels, RPN outputs and semantic logits
    mean, std : of the three channels, for values in 0..1. The graph applies them to `uint8` images; the images of
        classifiers must be normalised with them
    thresholds : thresholds of the fusion, as in `[general]`; empty for kinds that have none
    licence : licence of the weights, free text; empty if unknown
    query_classes : class (stuff first) of each class logit of a network of queries but the last one, of "no object";
        None for other networks
    maps : output maps of custom heads, by name, which is that of the output
    reference : shortest side and largest long side of an input of scale 1, see
        :func:`seamseg.data.input_size.reference_size`, of the training; None if no map has distances
    with_ids : whether an output `ids` holds the things, in place of masks, see
        :class:`seamseg.maps.predictions.Prediction`
    extra : further keys, for example `quantization`; JSON values
    """

    kind: str
    config: str
    metadata: Metadata
    size: tuple[int, int] | None
    multiple: int = 1
    sides: tuple[int, int] | None = None
    part: str = "all"
    precision: str = "fp32"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    licence: str = ""
    query_classes: tuple[int, ...] | None = None
    maps: Mapping[str, MapFormat] = field(default_factory=dict)
    reference: tuple[int, int] | None = None
    with_ids: bool = False
    version: str = __version__
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # the names become those of files
        if problem := next(filter(None, map(name_problem, self.maps)), None):
            raise InputError(f"maps: {problem}")

    @property
    def of_queries(self) -> bool:
        """Whether the network has queries, one class and one mask each."""
        return self.query_classes is not None

    @property
    def max_size(self) -> tuple[int, int] | None:
        """Largest `(height, width)` of an image; None if neither size nor sides are decided yet."""
        if self.size is None and self.sides is not None:
            return (self.sides[1] // self.multiple * self.multiple,) * 2
        return self.size

    def padded_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the `(height, width)` of the input for an image of at most :attr:`max_size`."""
        if self.size is not None:
            return self.size
        least = 1 if self.sides is None else self.sides[0]
        height, width = (-(-max(side, least) // self.multiple) * self.multiple for side in size)
        return height, width

    def inputs(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs by name for an image, at the size of the network's input; not for classifiers.

        The image, `H x W x 3` uint8 RGB, not larger than :attr:`max_size`, is padded at the bottom and on the right.
        """
        height, width = size = int(image.shape[0]), int(image.shape[1])
        padded = np.zeros((1, 3, *self.padded_size(size)), np.uint8)
        padded[0, :, :height, :width] = image.transpose(2, 0, 1)
        return {"image": padded, "size": np.array(size, np.int64)}

    def to_json(self) -> str:
        """Return the text that a file stores."""
        content = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name != "extra"}
        content.update(metadata=metadata_header(self.metadata), thresholds=dict(self.thresholds))
        content["maps"] = {name: asdict(spec) for name, spec in self.maps.items()}
        for name in ("maps", "reference", "with_ids"):
            if not content[name]:
                del content[name]
        return json.dumps({"format": FORMAT, **content, **self.extra}, ensure_ascii=False)

    @staticmethod
    def from_json(text: str, source: str) -> ExportedMetadata:
        """Read the text of the file `source`; InputError if it is damaged, or of another format."""
        own = {spec.name for spec in fields(ExportedMetadata)} - {"extra"}
        try:
            content = json.loads(text)
            if (found := content.pop("format")) != FORMAT:
                raise ValueError(f"of format {found!s:.20}, this version reads format {FORMAT}")
            extra = {name: value for name, value in content.items() if name not in own}
            given = {name: value for name, value in content.items() if name in own}
            given["metadata"] = _classes(given["metadata"], source)
            for name in ("mean", "std", "size", "sides", "reference", "query_classes"):
                if given.get(name) is not None:
                    given[name] = tuple(given[name])
            maps = given.get("maps", {})
            for spec in maps.values():
                if spec.get("mirror") is not None:
                    spec["mirror"] = tuple(spec["mirror"])
            given["maps"] = {name: MapFormat(**spec) for name, spec in maps.items()}
            return ExportedMetadata(extra=extra, **given)
        except (InputError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            reason = one_line(error)[:200]
            raise InputError(
                f"{source}: its seamseg metadata is damaged, or of another version ({reason}): export it again"
            ) from None


def _classes(content: dict[str, Any], source: str) -> Metadata:
    """Return the classes of a file; those of classifiers may be more than a class map has, and have names only."""
    if content["palette"]:
        return metadata_of(content, f"{source}: metadata")
    return Metadata(0, len(content["categories"]), content["categories"], [], [])
