"""Options of `export`, `convert-model` and `push`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Any

from seamseg.utils.errors import InputError
from seamseg.utils.options import option, override_texts, several

_CHOICES = {"part": ("all", "dense"), "precision": ("fp32", "bf16")}


@dataclass(frozen=True)
class ExportOptions:
    """Options of :func:`seamseg.export`."""

    model: str | Path = option("zip, folder, snapshot or hf://user/repo; also of a classifier or transformers")
    out: str | Path = option("file to write, *.onnx or *.pt2")
    config: str | Path | None = option("configuration of a model without its own; JSON of a classifier", None, "FILE")
    meta: str | Path | None = option(
        "metadata.bin of a model without its own; for a network of transformers also a class list", None, "F"
    )
    _: KW_ONLY
    size: tuple[int, int] | None = option(
        "fixed (height, width) of the input: images are scaled as usual, shrunk to fit, and padded (default: free; for "
        "networks that need a fixed size, that of an image twice as wide as high)",
        None,
        "HxW",
    )
    dynamic: bool = option("free height and width also of a classifier or a dense part", False)
    part: str = option("dense: pyramid, RPN and semantic logits only", "all", choices=_CHOICES["part"])
    precision: str = option("compute type of the file (default: fp32)", "fp32", "P")
    int8: str | Path | None = option("quantise to int8, calibrated with images of this data set folder", None, "DATA")
    calibrate: int | None = option("images of `int8`, evenly spaced in its train_set (default: 64)", None, "N")
    check: Sequence[str | Path] = option(
        "images to compare the file with the network on (default: a generated one)", (), "PHOTO", several="words"
    )
    licence: str = option(
        "licence of the weights, stated in the file (default: that of the model card, for transformers)", "", "TEXT"
    )
    force: bool = option("overwrite an existing file", False)
    overrides: Sequence[str] | Any = option("configuration keys, as `section.key=value` or by key", (), flags="--set")
    components: InitVar[str | Path | Sequence[str | Path]] = option("Python files or modules with components", ())

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        object.__setattr__(self, "overrides", override_texts(self.overrides, components))
        object.__setattr__(self, "check", several(self.check))
        if self.size is not None and self.dynamic:
            raise InputError("`size` and `dynamic` are mutually exclusive")
        if self.size is not None and not all(32 <= side <= 8192 for side in self.size):
            raise InputError(f"`size`: height and width must be 32 to 8192, not {self.size}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"`{name}={getattr(self, name)}`: choose one of {', '.join(known)}")
        if self.calibrate is not None and self.int8 is None:
            raise InputError("`calibrate` is the number of images of `int8`, which is not given")
        if self.int8 is not None and self.precision != "fp32":
            raise InputError(f"`int8={self.int8}` and `precision={self.precision}` exclude each other")


@dataclass(frozen=True)
class ConversionOptions:
    """Options of :func:`seamseg.contrib.deploy.model_folder.convert_model`."""

    licence: str = option("licence of the weights, such as cc-by-4.0 (default: as the model states)", "", "ID")
    config: str | Path | None = option("configuration of a model without its own; JSON of a classifier", None, "FILE")
    meta: str | Path | None = option(
        "metadata.bin of a model without its own; for a network of transformers also a class list", None, "F"
    )
    overrides: Sequence[str] = option("configuration keys, as `section.key=value`", (), flags="--set")
    force: bool = option("overwrite the folder of an earlier run", False)


@dataclass(frozen=True)
class CardOptions:
    """Facts that a model card states besides the model; the scores are on the first of the data sets."""

    datasets: Sequence[str] = option(
        "data set it was trained on; repeatable, the first is that of `scores`",
        (),
        "NAME",
        flags="--dataset",
        several="flags",
    )
    scores: str | Path | None = option("JSON of scores to state, from `seamseg evaluate --json`", None, "JSON")

    def __post_init__(self) -> None:
        if self.scores is not None and not self.datasets:
            raise InputError(f"`scores={self.scores}`: name the data set with `datasets=NAME`")
