"""The state of a training in a snapshot: how it is collected and restored (docs/contract.md, section 1)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.checkpoints.bundle import check_classes
from seamseg.checkpoints.snapshot import (
    Snapshot,
    check_storable,
    load_into,
    load_tensors,
    network_parts,
)
from seamseg.config.components import Record
from seamseg.data.samplers import EpochSegment
from seamseg.maps.evaluation.metric import Selection
from seamseg.maps.formats.metadata import Metadata, metadata_header
from seamseg.training.callbacks import Callbacks
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.optim.optimizer import load_optimizer_state
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import TrainerOptions
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World, gather_objects
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class TrainState:
    """A training on one process; `config` is the text of the configuration, `components` are those that it names."""

    stepper: Stepper
    schedule: LRSchedule
    metadata: Metadata
    config: str
    components: tuple[Record, ...] = ()


@dataclass
class TrainingProgress:
    """Finished epochs, by the index of the last, and steps; scores, 0 before the first; `best_of` may be empty."""

    epoch: int = -1
    global_step: int = 0
    last_score: float = 0.0
    best_score: float = 0.0
    best_of: str = ""

    def validated(self, score: Selection, has_best: bool) -> bool:
        """Return whether a score is the best so far, which NaN never is; `has_best` is whether there is one."""
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
    """A position after `steps` of an epoch, with the parts of which it consists and the `order` of the sampler."""

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


@dataclass(frozen=True)
class ResumePoint:
    """Where a resumed training begins.

    `position` is None at the begin of an epoch; `is_best` is for the snapshot of the best epoch. `rank_states` are the
    states of the processes that wrote it; empty in snapshots of the original. `stepper_state` is that of the main
    process; `missing` are lines about custom components that are not imported, or have changed.
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


def seed_everything(seed: int, epoch: int, rank: int, step: int | None = None) -> None:
    """Seed the RNGs of Python, NumPy and torch for an epoch of a process, or for its remainder from a step on."""
    words = ["seamseg", seed, epoch, rank, *([] if step is None else [step])]
    value = random.Random("/".join(map(str, words))).getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all RNGs of this process."""
    version, internal, python_gauss = random.getstate()
    twister: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "state": torch.tensor(internal), "gauss": python_gauss},
        "numpy": {
            "keys": torch.from_numpy(twister["state"]["key"].astype(np.int64)),
            "position": int(twister["state"]["pos"]),
            "has_gauss": int(twister["has_gauss"]),
            "gauss": float(twister["gauss"]),
        },
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore :func:`rng_state`."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    keys: Tensor = numpy["keys"]
    np.random.set_state(
        ("MT19937", keys.numpy().astype(np.uint32), numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def gather_rank_states(
    world: World, net: nn.Module, averaged: Mapping[str, Any], losses: dict[str, Any]
) -> list[dict[str, Any]]:
    """Gather random numbers, buffers and averages of every process, by rank; a collective call."""
    states = _states(net), averaged
    buffers, means = ({k: value.detach().cpu().clone() for k, value in _buffers(net, of).items()} for of in states)
    own = {"random": rng_state(world.device), "losses": losses, "buffers": buffers, "ema": means}
    gathered = gather_objects(world, own)
    # without what the snapshot holds anyway: buffers are made equal once an epoch only
    main = gathered[0]
    for state in gathered[1:]:
        for kind in ("buffers", "ema"):
            state[kind] = {key: value for key, value in state[kind].items() if not torch.equal(value, main[kind][key])}
    main["buffers"], main["ema"] = {}, {}
    return gathered


def make_snapshot(
    state: TrainState,
    progress: TrainingProgress,
    position: EpochPosition | None,
    is_best: bool,
    losses: dict[str, Any],
    callbacks: Callbacks,
) -> Snapshot | None:
    """Copy what resuming and prediction need to the host; collective, None but in the main process."""
    averaged = {} if state.stepper.ema is None else state.stepper.ema.state_dict()
    net, world, optimizer = state.stepper.net, state.stepper.world, state.stepper.optimizer
    rank_states = gather_rank_states(world, net, averaged, losses)
    if world.rank > 0:
        return None
    content: dict[str, Any] = {
        part: _copied(module.state_dict(), torch.contiguous_format) for part, module in network_parts(net).items()
    }
    content["optimizer"] = _copied(optimizer.state_dict())
    check_storable(content["optimizer"], f"optimizer {type(optimizer).__name__}: state_dict()")
    content.update(_copied(stepper_state(state.stepper), torch.contiguous_format))
    for loss, numbers in rank_states[0]["losses"]["epoch"].items():
        content[f"{loss}_meter"] = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    where = None
    if position is not None:
        segments = [list(segment) for segment in position.segments]
        where = {"epoch": position.epoch, "steps": position.steps, "segments": segments, "order": list(position.order)}
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
    """Restore weights and momentum; `epoch_length` in steps is for files that count epochs only."""
    snapshot = load_weights(path, net, metadata, run, averaged=False)
    meta, more = snapshot.training_meta, snapshot.resume or {}
    try:
        step, position, where = meta["global_step"], None, more.get("position")
        if where is not None:
            segments = tuple(EpochSegment(*map(int, segment)) for segment in where["segments"])
            order = tuple(map(int, where["order"]))
            position = EpochPosition(int(where["epoch"]), int(where["steps"]), segments, order)
        point = ResumePoint(
            source=Path(path),
            progress=TrainingProgress(
                epoch=int(meta["epoch"]),
                global_step=int((meta["epoch"] + 1) * epoch_length if step is None else step),
                # of the original tensors or numpy numbers, or None before the first validation
                last_score=float(meta.get("last_score") or 0),
                best_score=float(meta.get("best_score") or 0),
                best_of=str(more.get("best_of", "")),
            ),
            position=position,
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
        tensors = _buffers(net, _states(net))
        for name, value in own["buffers"].items():
            tensors[name].copy_(value)
        for name, value in own["ema"].items() if "ema" in state else ():
            part, _, key = name.partition(".")
            state["ema"][part][key] = value
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
    """Load all weights of a snapshot, or their moving average if it has one; errors as :func:`resume`."""
    snapshot = run.parse(load_tensors(path, str(path)), str(path))
    start = f"use `pretrain={path}` `pretrain_classes=TABLE` to start from its weights"
    check_classes(snapshot, metadata, str(path), "the data set has", start)
    load_into(net, snapshot, strict=True, name=str(path), averaged=averaged)
    return snapshot


def _states(net: nn.Module) -> dict[str, dict[str, Tensor]]:
    return {part: module.state_dict() for part, module in network_parts(net).items()}


def _buffers(net: nn.Module, states: Mapping[str, Any]) -> dict[str, Tensor]:
    parts = network_parts(net)
    names = {part: {n for n, _ in module.named_buffers()} for part, module in parts.items() if part in states}
    return {f"{part}.{key}": value for part in names for key, value in states[part].items() if key in names[part]}


def _copied(value: Any, memory_format: torch.memory_format = torch.preserve_format) -> Any:
    """Copy a tree of dicts and lists, with its tensors, to the host."""
    if isinstance(value, Tensor):
        return torch.empty_like(value.detach(), device="cpu", memory_format=memory_format).copy_(value.detach())
    if isinstance(value, Mapping):
        return {key: _copied(item, memory_format) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, memory_format) for item in value)
    return value
