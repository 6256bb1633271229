"""Where a training stands, into a snapshot and out of it again (SPEC section 1 "Snapshot")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seamseg.checkpoints.bundle import check_classes, metadata_header
from seamseg.checkpoints.snapshot import Snapshot, load_into, load_snapshot, network_parts
from seamseg.config import Config, config_to_string
from seamseg.formats.metadata import Metadata
from seamseg.models.panoptic import PanopticNet
from seamseg.training.checkpointing.position import EpochPosition
from seamseg.training.checkpointing.rank_state import load_rank_state, with_own_averages
from seamseg.training.logging.meters import AverageMeter
from seamseg.training.optim.optimizer import load_optimizer_state
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

STEPPER_PARTS = ("scaler", "ema")
"""What :meth:`Stepper.state_dict` may hold, each a part of a snapshot's `state_dict`."""


@dataclass
class Progress:
    """Where a training stands.

    Attributes
    ----------
    epoch : number of the last finished epoch, from 0; -1 before the first
    global_step : steps so far
    last_score, best_score : of the last and the best validation, fractions; 0 before the first
    """

    epoch: int = -1
    global_step: int = 0
    last_score: float = 0.0
    best_score: float = 0.0


@dataclass(frozen=True)
class Start:
    """Where a resumed training begins.

    Attributes
    ----------
    source : the snapshot
    progress : of the epochs that are finished
    position : in the epoch that is not; None if the next epoch begins
    is_best : the snapshot is that of the best epoch so far
    rank_states : of the processes that wrote it, by rank; empty in snapshots of the original and of early releases
    stepper_state : for :meth:`Stepper.load_state_dict`, of the main process
    config : INI text it was trained with
    """

    source: Path
    progress: Progress
    position: EpochPosition | None = None
    is_best: bool = False
    rank_states: list[dict[str, Any]] = field(default_factory=list)
    stepper_state: dict[str, Any] = field(default_factory=dict)
    config: str = ""

    def own_state(self, world: World) -> dict[str, Any] | None:
        """What this process held itself; None if other processes, or others in number, wrote the snapshot."""
        return self.rank_states[world.rank] if len(self.rank_states) == world.size else None


def make_snapshot(
    config: Config,
    metadata: Metadata,
    net: PanopticNet,
    stepper: Stepper,
    meters: dict[str, AverageMeter],
    progress: Progress,
    resume: dict[str, Any],
) -> Snapshot:
    """Everything that `--resume` and `predict` need, copied to the host: training may go on while it is written.

    Parameters
    ----------
    meters : averages of the epoch
    resume : see :func:`resume_state`
    """
    state: dict[str, Any] = {
        part: _copied(module.state_dict(), torch.contiguous_format) for part, module in network_parts(net).items()
    }
    state["optimizer"] = _copied(stepper.optimizer.state_dict())
    state.update(_copied(stepper.state_dict(), torch.contiguous_format))
    state.update({f"{name}_meter": meter.state_dict() for name, meter in meters.items()})
    return Snapshot(config_to_string(config), state, asdict(progress), metadata_header(metadata), resume)


def resume_state(
    position: EpochPosition | None, rank_states: list[dict[str, Any]], is_best: bool, total_steps: int
) -> dict[str, Any]:
    """What a snapshot of ours says beyond those of the original.

    Parameters
    ----------
    position : in the epoch; None between two
    rank_states : of all processes, :func:`seamseg.training.checkpointing.rank_state.gather_rank_states`
    is_best : it is the best so far
    total_steps : length of the schedule; for the reader, who can also work it out
    """
    where = None if position is None else position.state_dict()
    return {"position": where, "ranks": rank_states, "is_best": is_best, "total_steps": total_steps}


def resume(path: str | Path, net: PanopticNet, optimizer: torch.optim.Optimizer, metadata: Metadata) -> Start:
    """Continue from a snapshot of ours or of the original: weights and momentum are put in place.

    Raises
    ------
    InputError
        if it is broken, of another network or other classes, or does not say where its training stood
    """
    snapshot = load_weights(path, net, metadata, averaged=False)
    meta, more = snapshot.training_meta, snapshot.resume or {}
    try:
        start = Start(
            source=Path(path),
            progress=Progress(
                epoch=int(meta["epoch"]),
                global_step=int(meta["global_step"]),
                last_score=_score(meta.get("last_score")),
                best_score=_score(meta.get("best_score")),
            ),
            position=None if more.get("position") is None else EpochPosition.from_state(more["position"]),
            is_best=bool(more.get("is_best")),
            rank_states=list(more.get("ranks", [])),
            stepper_state={k: snapshot.state_dict[k] for k in STEPPER_PARTS if k in snapshot.state_dict},
            config=snapshot.config,
        )
        if start.position is not None and not start.rank_states:
            raise ValueError("no process wrote it")
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path}: does not say where its training stood; start anew from its weights with --pre-train {path}"
        ) from None
    if "optimizer" not in snapshot.state_dict:
        raise InputError(f"{path}: has no optimizer state; start anew from its weights with --pre-train {path}")
    load_optimizer_state(optimizer, snapshot.state_dict["optimizer"], str(path))
    return start


def load_own_state(start: Start, net: PanopticNet, stepper: Stepper, world: World) -> None:
    """Put in place the running statistics of this process and the state of its stepper."""
    own, state = start.own_state(world), dict(start.stepper_state)
    try:
        if own is not None:
            load_rank_state(own, net)
            if "ema" in state:
                state["ema"] = with_own_averages(state["ema"], own)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{start.source}: its state of process {world.rank} cannot be used: {error}") from None
    stepper.load_state_dict(state, str(start.source))


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


def _copied(value: Any, memory_format: torch.memory_format = torch.preserve_format) -> Any:
    """A tree of dicts and lists with copies of its tensors on the host."""
    if isinstance(value, Tensor):
        return _host_copy(value.detach(), memory_format)
    if isinstance(value, Mapping):
        return {key: _copied(item, memory_format) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, memory_format) for item in value)
    return value


def _host_copy(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    return torch.empty_like(tensor, device="cpu", memory_format=memory_format).copy_(tensor)
