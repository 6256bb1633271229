"""Where a training stands, into a snapshot and out of it again (SPEC section 1 "Snapshot")."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from seamseg.config import Config, config_to_string
from seamseg.data.metadata import Metadata
from seamseg.engine.model_file import check_classes, metadata_header
from seamseg.engine.snapshot import Snapshot, load_into, load_snapshot, network_state
from seamseg.engine.train.meters import AverageMeter
from seamseg.engine.train.optimizer_state import load_optimizer_state
from seamseg.engine.train.step import Stepper
from seamseg.errors import InputError
from seamseg.models.panoptic import PanopticNet


@dataclass
class Progress:
    """Where a training stands.

    Attributes
    ----------
    epoch : number of the last finished epoch, from 0; -1 before the first
    global_step : batches so far
    last_score, best_score : of the last and the best validation, fractions; 0 before the first
    """

    epoch: int = -1
    global_step: int = 0
    last_score: float = 0.0
    best_score: float = 0.0


def make_snapshot(
    config: Config,
    metadata: Metadata,
    net: PanopticNet,
    optimizer: torch.optim.Optimizer,
    meters: dict[str, AverageMeter],
    progress: Progress,
) -> Snapshot:
    """Everything that `--resume` and `predict` need; tensors are those of the training, not copies, on the CPU."""
    state: dict[str, Any] = dict(network_state(net))
    state["optimizer"] = optimizer.state_dict()
    state.update({f"{name}_meter": meter.state_dict() for name, meter in meters.items()})
    return Snapshot(config_to_string(config), state, asdict(progress), metadata_header(metadata))


def resume(path: str | Path, net: PanopticNet, stepper: Stepper, metadata: Metadata) -> Progress:
    """Continue from a snapshot of ours or of the original.

    Raises
    ------
    InputError
        if it is broken, of another network or other classes, or does not say where its training stood
    """
    snapshot = load_weights(path, net, metadata, averaged=False)
    meta = snapshot.training_meta
    try:
        progress = Progress(
            epoch=int(meta["epoch"]),
            global_step=int(meta["global_step"]),
            last_score=_score(meta.get("last_score")),
            best_score=_score(meta.get("best_score")),
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path}: does not say where its training stood; start anew from its weights with --pre-train {path}"
        ) from None
    if "optimizer" not in snapshot.state_dict:
        raise InputError(f"{path}: has no optimizer state; start anew from its weights with --pre-train {path}")
    load_optimizer_state(stepper.optimizer, snapshot.state_dict["optimizer"], str(path))
    stepper.load_state_dict(snapshot.state_dict, str(path))
    return progress


def load_weights(path: str | Path, net: PanopticNet, metadata: Metadata, averaged: bool = True) -> Snapshot:
    """Put the weights of a snapshot, all of them, into a network; errors as :func:`resume`.

    With `averaged` those are the moving average where there is one.
    """
    snapshot = load_snapshot(path)
    check_classes(snapshot, metadata, str(path))
    load_into(net, snapshot, strict=True, name=str(path), averaged=averaged)
    return snapshot


def _score(value: Any) -> float:
    # the original's scores are tensors or numpy numbers, or None before the first validation
    return 0.0 if value is None else float(value)
