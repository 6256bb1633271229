"""Scores as a table for people, in percent."""

from __future__ import annotations

import math

from seamseg.evaluation.scores import AP_NUMBERS, InstanceScores, PanopticScores


def format_table(scores: PanopticScores, per_class: bool = True) -> str:
    """A plain-text table in percent; `-` where there was nothing to measure; classes that never occur are left out.

    Parameters
    ----------
    scores : as fractions
    per_class : also list the classes
    """
    lines = [f"{'':<8}{'PQ':>7}{'SQ':>7}{'RQ':>7}{'PQ†':>7}{'mIoU':>7}{'classes':>9}"]
    groups = (
        ("all", "", scores.per_class),
        ("things", "_things", [c for c in scores.per_class if c.info.isthing]),
        ("stuff", "_stuff", [c for c in scores.per_class if not c.info.isthing]),
    )
    for title, suffix, members in groups:
        values = [getattr(scores, key + suffix) for key in ("PQ", "SQ", "RQ")]
        overall = [scores.PQ_dagger, scores.mIoU] if not suffix else []
        cells = "".join(percent(v) for v in values) + ("".join(percent(v) for v in overall) or " " * 14)
        occurring = sum(c.TP + c.FP + c.FN > 0 for c in members)
        lines.append(f"{title:<8}{cells}{f'{occurring}/{len(members)}':>9}")
    if scores.instances is not None:
        lines += ["", *_instance_lines(scores.instances, per_class)]
    occurring_classes = [c for c in scores.per_class if c.TP + c.FP + c.FN > 0 or not math.isnan(c.IoU)]
    if per_class:
        width = max([len("class"), *(len(c.info.name) for c in occurring_classes)])
        lines += [
            "",
            f"{'class':<{width}}  {'kind':<5}{'PQ':>7}{'SQ':>7}{'RQ':>7}{'IoU':>7}{'TP':>8}{'FP':>8}{'FN':>8}",
        ]
        for c in occurring_classes:
            cells = "".join(percent(v) for v in (c.PQ, c.SQ, c.RQ, c.IoU))
            kind = "thing" if c.info.isthing else "stuff"
            lines.append(f"{c.info.name:<{width}}  {kind:<5}{cells}{c.TP:>8}{c.FP:>8}{c.FN:>8}")
    images = f"{scores.n_images} image{'' if scores.n_images == 1 else 's'}"
    lines += ["", f"{images}; in percent; means are over the classes that occur"]
    return "\n".join(lines)


_PLURALS = {"box": "boxes", "mask": "masks"}


def _instance_lines(scores: InstanceScores, per_class: bool) -> list[str]:
    lines = [f"{'':<8}" + "".join(f"{name.removeprefix('AP_'):>7}" for name in AP_NUMBERS)]
    lines += [
        f"{_PLURALS[kind]:<8}" + "".join(percent(getattr(ap, key)) for key in AP_NUMBERS)
        for kind, ap in scores.kinds.items()
    ]
    if per_class:
        width = max([len("thing"), *(len(c.info.name) for c in scores.box.per_class)])
        lines += ["", f"{'thing':<{width}}" + "".join(f"{kind + ' AP':>9}" for kind in scores.kinds)]
        for row in zip(*(ap.per_class for ap in scores.kinds.values())):
            if not all(math.isnan(c.AP) for c in row):
                lines.append(f"{row[0].info.name:<{width}}" + "".join(f"{percent(c.AP):>9}" for c in row))
    return lines


def percent(value: float) -> str:
    """A cell of seven characters."""
    return f"{'-':>7}" if math.isnan(value) else f"{100 * value:>7.2f}"
