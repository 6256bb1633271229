"""The state of a training in a snapshot: how it is collected and restored (docs/contract.md, section 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.checkpoints.bundle import check_classes
from seamseg.checkpoints.snapshot import (
    Snapshot,
    check_storable,
    load_into,
    network_parts,
)
from seamseg.config.components import Record
from seamseg.data.samplers import DistributedARBatchSampler, EpochSegment
from seamseg.maps.evaluation.metric import Selection
from seamseg.maps.formats.metadata import Metadata, metadata_header
from seamseg.training.callbacks import Callbacks
from seamseg.training.checkpointing.rank_state import gather_rank_states, load_rank_buffers, with_rank_averages
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.optim.optimizer import load_optimizer_state
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class TrainState:
    """A training on one process; `config` is the text of the configuration, `components` are those that it names."""

    stepper: Stepper
    schedule: LRSchedule
    metadata: Metadata
    config: str
    components: tuple[Record, ...] = ()

    @property
    def options(self) -> TrainerOptions:
        """The options of the trainer."""
        return self.stepper.options

    @property
    def world(self) -> World:
        """The processes."""
        return self.stepper.world

    @property
    def net(self) -> nn.Module:
        """The network, on the device of this process."""
        return self.stepper.net


@dataclass
class TrainingProgress:
    """Epochs and steps that are done, and the scores.

    `epoch` is the index of the last finished epoch, -1 before the first. Scores are 0 before the first validation.
    `best_of` is the name of the best score; empty before the first, and in snapshots of the original.
    """

    epoch: int = -1
    global_step: int = 0
    last_score: float = 0.0
    best_score: float = 0.0
    best_of: str = ""

    def validated(self, score: Selection, has_best: bool) -> bool:
        """Take note of the score of a validation; return whether it is the best so far, which NaN never is.

        Without `has_best` there is no best snapshot to compare with; one that another score has chosen does not count.
        """
        comparable = has_best and self.best_of in ("", score.name)
        is_best = score.beats(self.best_score) if comparable else not math.isnan(score.value)
        self.last_score = score.value
        if is_best:
            self.best_score = score.value
        if is_best or comparable:
            self.best_of = score.name
        return is_best


@dataclass(frozen=True)
class EpochPosition:
    """A position after some steps of an epoch, from 0.

    `segments` are the batches of these steps, and how they were divided among processes; for `order` see
    :func:`data_order`.
    """

    epoch: int
    steps: int
    segments: tuple[EpochSegment, ...]
    order: tuple[int, ...]

    def after(self, batches: int) -> EpochPosition:
        """Return the position after one more step of so many batches per process."""
        last = self.segments[-1]
        return replace(
            self, steps=self.steps + 1, segments=(*self.segments[:-1], last._replace(done=last.done + batches))
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain numbers and lists."""
        segments = [list(segment) for segment in self.segments]
        return {"epoch": self.epoch, "steps": self.steps, "segments": segments, "order": list(self.order)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EpochPosition:
        """Restore a position from :meth:`state_dict`; KeyError, TypeError or ValueError if it is malformed."""
        segments = tuple(EpochSegment(*map(int, segment)) for segment in state["segments"])
        return cls(int(state["epoch"]), int(state["steps"]), segments, tuple(map(int, state["order"])))


def data_order(sampler: DistributedARBatchSampler, seed: int) -> tuple[int, int]:
    """Return what determines the order of the images besides the epoch: their number and the seed of the run.

    A position is valid only in an epoch of the same order.
    """
    return len(sampler.img_sizes), seed


@dataclass(frozen=True)
class ResumePoint:
    """Where a resumed training begins.

    `position` is None at the begin of an epoch, `is_best` if this is the snapshot of the best epoch so far.
    `rank_states` are the states of the processes that wrote it, by rank; empty in snapshots of the original.
    `stepper_state` is :func:`stepper_state` of the main process; `callbacks` are states by name. `missing` are
    lines about custom components of the snapshot that are not imported, or have changed.
    """

    source: Path
    progress: TrainingProgress
    position: EpochPosition | None = None
    is_best: bool = False
    rank_states: list[dict[str, Any]] = field(default_factory=list)
    stepper_state: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    callbacks: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def rank_state(self, world: World) -> dict[str, Any] | None:
        """Return the state of this process; None if another number of processes wrote the snapshot."""
        return self.rank_states[world.rank] if len(self.rank_states) == world.size else None


def make_snapshot(
    state: TrainState,
    progress: TrainingProgress,
    position: EpochPosition | None,
    is_best: bool,
    losses: dict[str, Any],
    callbacks: Callbacks,
) -> Snapshot | None:
    """Copy everything that resuming and prediction need to the host, so that training can go on during the write.

    `losses` are the averages of the losses of this process; `position` is None between two epochs. A collective call,
    which returns None in processes other than the main one.
    """
    averaged = {} if state.stepper.ema is None else state.stepper.ema.state_dict()
    rank_states = gather_rank_states(state.world, state.net, averaged, losses)
    if not state.world.is_main:
        return None
    content: dict[str, Any] = {
        part: _copied(module.state_dict(), torch.contiguous_format) for part, module in network_parts(state.net).items()
    }
    optimizer = state.stepper.optimizer
    content["optimizer"] = _copied(optimizer.state_dict())
    check_storable(content["optimizer"], f"optimizer {type(optimizer).__name__}: state_dict()")
    content.update(_copied(stepper_state(state.stepper), torch.contiguous_format))
    for loss, numbers in rank_states[0]["losses"]["epoch"].items():
        content[f"{loss}_meter"] = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    where = None if position is None else position.state_dict()
    # what snapshots of the original lack; the length of the schedule is for information only
    more: dict[str, Any] = {
        "position": where,
        "ranks": rank_states,
        "is_best": is_best,
        "total_steps": state.schedule.total,
    }
    if states := callbacks.states():
        more["callbacks"] = states
    meta = asdict(progress)
    more |= {"optimizer": type(optimizer).__name__, "best_of": meta.pop("best_of")}
    return Snapshot(state.config, content, meta, metadata_header(state.metadata), more, state.components)


def resume(
    path: str | Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    metadata: Metadata,
    run: RunFolder,
    epoch_length: int,
    options: TrainerOptions,
) -> ResumePoint:
    """Restore weights and momentum from a snapshot of this project or of the original.

    `epoch_length` is the number of steps an epoch, for files that count epochs only. InputError if the snapshot is
    broken, of another network or other classes, or holds no training progress.
    """
    snapshot = load_weights(path, net, metadata, run, averaged=False)
    meta, more = snapshot.training_meta, snapshot.resume or {}
    try:
        step = meta["global_step"]
        point = ResumePoint(
            source=Path(path),
            progress=TrainingProgress(
                epoch=int(meta["epoch"]),
                global_step=int((meta["epoch"] + 1) * epoch_length if step is None else step),
                last_score=_score(meta.get("last_score")),
                best_score=_score(meta.get("best_score")),
                best_of=str(more.get("best_of", "")),
            ),
            position=None if more.get("position") is None else EpochPosition.from_state(more["position"]),
            is_best=bool(more.get("is_best")),
            rank_states=list(more.get("ranks", [])),
            stepper_state={k: snapshot.state_dict[k] for k in ("scaler", "ema") if k in snapshot.state_dict},
            config=snapshot.config,
            callbacks=dict(more.get("callbacks", {})),
            missing=tuple(filter(None, (record.missing or record.change for record in snapshot.components))),
        )
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path}: its training progress is missing or damaged; use `pretrain={path}` to start from its weights"
        ) from None
    if "optimizer" not in snapshot.state_dict:
        raise InputError(f"{path}: has no optimizer state; use `pretrain={path}` to start from its weights")
    try:
        load_optimizer_state(optimizer, snapshot.state_dict["optimizer"], str(path), more.get("optimizer"), options.key)
    except InputError as error:
        raise InputError("; ".join([str(error), *point.missing])) from None
    return point


def load_rank_state(point: ResumePoint, net: nn.Module, stepper: Stepper, world: World) -> None:
    """Restore the running statistics of this process and the state of its stepper."""
    own, state = point.rank_state(world), dict(point.stepper_state)
    if own is not None:
        load_rank_buffers(own, net)
        if "ema" in state:
            state["ema"] = with_rank_averages(state["ema"], own)
    load_stepper_state(stepper, state, str(point.source))


def stepper_state(stepper: Stepper) -> dict[str, Any]:
    """Return the state of a stepper besides weights and optimizer: "scaler" and "ema", as far as they are in use."""
    used = {"scaler": stepper.scaler, "ema": stepper.ema}
    return {name: part.state_dict() for name, part in used.items() if part is not None}


def load_stepper_state(stepper: Stepper, state: Mapping[str, Any], source: str) -> None:
    """Restore a state of the file `source`; an average that it lacks begins with the current weights."""
    if stepper.scaler is not None and "scaler" in state:
        stepper.scaler.load_state_dict(dict(state["scaler"]))
    if stepper.ema is not None:
        stepper.ema.load_state_dict(state["ema"], source) if "ema" in state else stepper.ema.reset()


def load_weights(
    path: str | Path, net: nn.Module, metadata: Metadata, run: RunFolder, averaged: bool = True
) -> Snapshot:
    """Load all weights of a snapshot into a network; errors as :func:`resume`.

    With `averaged` those are the moving average if the snapshot has one.
    """
    snapshot = run.load(path)
    start = f"use `pretrain={path}` `pretrain_classes=TABLE` to start from its weights"
    check_classes(snapshot, metadata, str(path), "the data set has", start)
    load_into(net, snapshot, strict=True, name=str(path), averaged=averaged)
    return snapshot


def _score(value: Any) -> float:
    # the original's scores are tensors or numpy numbers, or None before the first validation
    return 0.0 if value is None else float(value)


def _copied(value: Any, memory_format: torch.memory_format = torch.preserve_format) -> Any:
    """Copy a tree of dicts and lists, with its tensors, to the host."""
    if isinstance(value, Tensor):
        return torch.empty_like(value.detach(), device="cpu", memory_format=memory_format).copy_(value.detach())
    if isinstance(value, Mapping):
        return {key: _copied(item, memory_format) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, memory_format) for item in value)
    return value
