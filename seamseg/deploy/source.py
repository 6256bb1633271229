"""What is exported: the options, and the trained network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from seamseg.data.input_size import InputSize
from seamseg.deploy.network import ExportNet, export_net
from seamseg.formats.exported import PARTS, ExportedMetadata
from seamseg.models.folding import PRECISIONS
from seamseg.utils.errors import InputError

_SIDES = (32, 8192)


@dataclass(frozen=True)
class ExportOptions:
    """Options of :func:`seamseg.deploy.export.export_model`; None for the value of the configuration.

    Attributes
    ----------
    size : `(height, width)` of the input; larger images are shrunk to it and smaller ones padded. By default both are
        free. Classifiers, networks of transformers, those with windows and dense parts have a fixed size, by default
        that of the crop or of an image twice as wide as high
    dynamic : height and width of the input are free for classifiers and dense parts, too
    part : "all", or "dense": pyramid levels, RPN outputs and semantic logits
    precision : compute type of the file
    int8, calibrate : dataset folder, with whose images the network is quantised to int8, and their maximum number
    opset : version of the operators of ONNX, by default 20; for ONNX files only
    check : images to compare the file with the network on; a generated image by default
    force : overwrite an existing file
    config, meta : INI file (of a classifier the JSON file) and `metadata.bin`, if the model does not contain them; of a
        network of transformers the class list
    overrides : configuration keys as `section.key=value`
    licence : licence of the weights, stated in the file; by default that of the model card of a network of transformers

    Raises
    ------
    InputError
        if a value is out of range or two exclude each other
    """

    size: tuple[int, int] | None = None
    dynamic: bool = False
    part: str = "all"
    precision: str = "fp32"
    int8: str | Path | None = None
    calibrate: int = 64
    opset: int | None = None
    check: Sequence[str | Path] = ()
    force: bool = False
    config: str | Path | None = None
    meta: str | Path | None = None
    overrides: Sequence[str] = ()
    licence: str = ""

    def __post_init__(self) -> None:
        if self.size is not None and self.dynamic:
            raise InputError("`size` and `dynamic` are mutually exclusive")
        if self.size is not None and not all(_SIDES[0] <= side <= _SIDES[1] for side in self.size):
            raise InputError(f"`size`: height and width must be {_SIDES[0]} to {_SIDES[1]}, not {self.size}")
        for name, known in (("part", PARTS), ("precision", tuple(PRECISIONS))):
            if getattr(self, name) not in known:
                raise InputError(f"`{name}={getattr(self, name)}`: choose one of {', '.join(known)}")
        if self.int8 is not None and self.precision != "fp32":
            raise InputError(f"`int8={self.int8}` and `precision={self.precision}` exclude each other")


@dataclass(frozen=True)
class ExportSource:
    """A trained network that is exported.

    Attributes
    ----------
    net : folded, in evaluation mode
    metadata : metadata of the exported file; its size is None
    size : `(height, width)` of the input of a file of fixed size by default
    input_size : function from images to the network's input; None for a classifier
    """

    net: nn.Module
    metadata: ExportedMetadata
    size: tuple[int, int]
    input_size: InputSize | None

    def export_net(self, standard_ops: bool) -> ExportNet:
        """Return the module that is exported; `standard_ops` as for :class:`seamseg.deploy.network.ExportNet`."""
        stated = self.metadata
        return export_net(self.net, stated.mean, stated.std, stated.part, standard_ops)


def three(values: Sequence[float] | None, default: float) -> tuple[float, float, float]:
    """Return the values of the three channels; a default for those that a configuration lacks."""
    red, green, blue = (default,) * 3 if values is None else values
    return red, green, blue


def default_size(size: InputSize) -> tuple[int, int]:
    """Return `(height, width)` for images twice as wide as high, or as the limits of the size are; multiples of 32."""
    if size.longest_size is not None:
        height, width = size.longest_size * 3 // 4, size.longest_size
    else:
        height = size.shortest_size or 1024
        width = min(2 * height, size.longest_max_size or 2 * height)
    return -(-height // 32) * 32, -(-width // 32) * 32
