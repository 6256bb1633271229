"""Under which names the numbers of a training are told: TensorBoard tags, and the words of a validation."""

from __future__ import annotations

from seamseg.engine.train.logs import duration
from seamseg.evaluation.scores import AP_NUMBERS, HEADLINE, PanopticScores

_GROUPS = {
    "lr_norm": "lr/norm",
    "lr_other": "lr/other",
    "step_seconds": "time/step",
    "data_seconds": "time/data",
    "data_share": "time/data_share",
    "images_per_second": "time/images_per_second",
    "rss_peak_gib": "memory/rss_peak_gib",
    "allocated_peak_gib": "memory/allocated_peak_gib",
    "reserved_peak_gib": "memory/reserved_peak_gib",
}

_SHOWN = ("PQ", "PQ_things", "PQ_stuff", "SQ", "RQ", "PQ_dagger", "mIoU")


def train_tag(name: str) -> str:
    """The TensorBoard tag of a number that `metrics.jsonl` calls `name`."""
    return _GROUPS.get(name, f"train/{name}")


def validation_scalars(scores: PanopticScores) -> dict[str, float]:
    """The scores by TensorBoard tag; what could not be measured is left out."""
    values = {f"val/{name}": getattr(scores, name) for name in HEADLINE}
    for key in ("PQ", "SQ", "RQ", "IoU"):
        values |= {f"val_{key}/{c.info.name}": getattr(c, key) for c in scores.per_class}
    if scores.instances is not None:
        for kind, ap in scores.instances.kinds.items():
            values |= {f"val/{kind}_{name}": getattr(ap, name) for name in AP_NUMBERS}
            values |= {f"val_{kind}_AP/{c.info.name}": c.AP for c in ap.per_class}
    return {tag: value for tag, value in values.items() if value == value}


def validation_line(scores: PanopticScores, seconds: float) -> str:
    """The scores in percent, and the time they took, for the text log."""
    words = [f"{name} {100 * getattr(scores, name):.2f}" for name in _SHOWN]
    if scores.instances is not None:
        for kind, ap in scores.instances.kinds.items():
            words.append(f"{kind} AP {100 * ap.AP:.2f} (AP50 {100 * ap.AP50:.2f}, AP75 {100 * ap.AP75:.2f})")
    return f"{'  '.join(words)} ({scores.n_images} images, {duration(seconds)})"
