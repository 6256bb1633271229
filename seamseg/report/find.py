"""Where the evaluation of a run is."""

from __future__ import annotations

from pathlib import Path

from seamseg.errors import InputError
from seamseg.evaluation.record import SUMMARY, Evaluation, read_evaluation

INSIDE_A_RUN = "evaluation"
"""Folder of the evaluation within a run folder."""


def find_evaluation(run: str | Path) -> Evaluation:
    """The evaluation in `run`, or in its sub-folder `evaluation`.

    Raises
    ------
    InputError
        if there is none, with the command that makes one; or if it is broken
    """
    run = Path(run)
    for folder in (run, run / INSIDE_A_RUN):
        if (folder / SUMMARY).is_file():
            return read_evaluation(folder)
    if not run.is_dir():
        raise InputError(f"{run}: no such folder; name a run or what `seamseg evaluate ... --out {run}` has written")
    raise InputError(
        f"{run}: holds no {SUMMARY}; make one with `seamseg evaluate {run} DATA --out {run / INSIDE_A_RUN}` (a model) "
        f"or `seamseg evaluate --gt GT.json --pred PRED.json --out {run}` (files)"
    )
