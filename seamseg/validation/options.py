"""Options of `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from seamseg.inference.options import MODEL, InferenceOptions, config_option, device_option, meta_option
from seamseg.utils.errors import InputError
from seamseg.utils.options import option


@dataclass(frozen=True)
class EvaluationOptions(InferenceOptions):
    """Options of :func:`seamseg.evaluate`: a model is run as by `predict` with the same options.

    Raises
    ------
    InputError
        if an option is out of range, two exclude each other, or one has no effect on scores
    """

    model: str | Path = option(MODEL)
    data: str | Path = option("data set folder, as `seamseg prepare` writes it")
    device: str = device_option()
    config: str | Path | None = config_option()
    meta: str | Path | None = meta_option()
    _: KW_ONLY
    split: str | None = option("split of the data set (default: val_set of the configuration)", None, group="opening")
    class_table: str | Path | None = option(
        "the data set has other classes than the model: map them by the names of a table: names (equal names), "
        "vistas_cityscapes, coco_cityscapes, or an INI file",
        None,
        "TABLE",
        group="opening",
    )
    out: str | Path | None = option("write an evaluation folder for `seamseg report`", None, "DIR")
    legacy: bool = option(
        "count like the original: crowds are void for all classes, absent classes score 0; models at network size",
        False,
        flags="--legacy-metrics",
    )
    quiet: bool = option("show no progress", False)

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        super().__post_init__(components)
        if self.legacy and self.out is not None:
            raise InputError(f"`out={self.out}`: an evaluation folder uses the official metrics, not legacy ones")
        if self.legacy and self.class_table is not None:
            raise InputError(
                f"`class_table={self.class_table}` and `legacy` are mutually exclusive: the original mapped no classes"
            )
        if self.classes is not None:
            raise InputError("`classes` has no effect: all classes of the data set are scored")
        if self.probabilities:
            raise InputError("`probabilities` has no effect: scores are of classes")
