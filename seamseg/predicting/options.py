"""Options of `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.inference.options import MODEL, InferenceOptions, config_option, device_option, meta_option
from seamseg.utils.errors import InputError
from seamseg.utils.options import option

if TYPE_CHECKING:
    from seamseg.inference.anonymize import Style

LABELS = "format overlay.labels=yes"
"""The override of `--labels`."""

_hiding, _run = partial(option, group="anonymisation"), partial(option, group="run")


@dataclass(frozen=True)
class PredictOptions(InferenceOptions):
    """Options of :func:`seamseg.predict`; InputError if one is out of range."""

    model: str | Path = option(MODEL)
    inputs: str | Path | Sequence[str | Path] = option(
        "image, folder, glob, list or video; one or several", metavar="IN", several="words"
    )
    out: str | Path = option("folder for the outputs (created); for one video also a file, .mp4, .mov or .mkv")
    formats: str | Sequence[str] | None = option(
        "formats of the outputs (default: overlay; with `hide` none)",
        None,
        "LIST",
        flags="--format",
    )
    device: str = device_option()
    config: str | Path | None = config_option()
    meta: str | Path | None = meta_option()
    _: KW_ONLY
    hide: str | Sequence[str] | None = _hiding(
        "classes to hide, such as person,rider,car", None, "LIST", flags="--anonymize"
    )
    style: Style | None = _hiding("default: blur", None, choices=("blur", "pixels"), flags="--anonymize-style")
    least_score: float | None = _hiding(
        "minimum score of hidden detections (default: 0.2, lower than for the panoptic map, to be safe)",
        None,
        "P",
        flags="--anonymize-score",
    )
    batch_size: int | None = _run(
        "maximum number of images of equal network size computed together (default: 4 on a GPU, else 1)", None, "N"
    )
    workers: int | None = _run(
        "threads that decode; with 0 or 1 none ahead (default: one per core up to 4, or a quarter of the cores; 0 for "
        "a single image, or if the first has 33 megapixels or more)",
        None,
        "N",
    )
    limit: int | None = _run("only the first N images, and the first N frames of each video", None, "N")
    restart: bool = _run("process all images again, and replace earlier outputs", False)

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        super().__post_init__(components)
        for name in ("limit", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}={value}`: must be at least 1")
        if self.workers is not None:
            from seamseg.utils.parallel import check_workers  # not for --help

            check_workers(self.workers)
        if self.style not in (None, "blur", "pixels"):
            raise InputError(f"`style={self.style}`: choose one of blur, pixels")
        if self.least_score is not None and not 0 <= self.least_score <= 1:
            raise InputError(f"`least_score` must be between 0 and 1, not {self.least_score}")
        for name in ("style", "least_score"):
            if self.hide is None and getattr(self, name) is not None:
                raise InputError(f"`{name}` has no effect without `hide`")
