"""Dumps of failed training steps, for :mod:`seamseg.training.debugging.replay`.

A dump holds the weights before the step, the batches, and the RNG state at its start; all plain tensors and data, so
that it can be loaded without trusting its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seamseg import structures
from seamseg.checkpoints.snapshot import load_tensors, network_state, write_tensors
from seamseg.formats.metadata import Metadata, metadata_header
from seamseg.structures import Batch, PackedSequence
from seamseg.training.checkpointing.rank_state import rng_state
from seamseg.training.prefetch import TrainingBatch
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

_KEYS = ("config", "metadata", "state_dict", "rng", "batches", "losses", "step", "rank")
_STORED_NAMES = {
    "target_info": "facts",
    "deferred": "pending",
    "DeferredTransform": "Pending",
    "unreadable": "broken",
}
"""Classes and fields whose name in a dump is not that in the code: dumps of earlier versions stay readable."""
_COMPUTED = ("target_info",)
"""Fields that are not stored: they are computed from others."""
_CODE_NAMES = {stored: name for name, stored in _STORED_NAMES.items()}


@dataclass(frozen=True)
class Dump:
    """A failed training step.

    Attributes
    ----------
    config, metadata : INI text, and the classes as in a snapshot
    state_dict : weights by part, as in a snapshot, before the step
    rng : RNG state at its start, see :func:`seamseg.training.checkpointing.rank_state.rng_state`
    batches : batches of this process, as loaded
    losses : losses by name; `loss` is the weighted sum
    step, rank, world_size : index of the step, process, number of processes
    reason : what failed
    """

    config: str
    metadata: dict[str, Any]
    state_dict: dict[str, Any]
    rng: dict[str, Any]
    batches: list[Batch]
    losses: dict[str, float]
    step: int
    rank: int = 0
    world_size: int = 1
    reason: str = ""


def dump_path(folder: Path, step: int, rank: int) -> Path:
    """Return the path of the dump of a step; processes other than the first have their rank in the name.

    A training that repeats the step replaces the dump.
    """
    return folder / f"dump-step-{step:08d}{f'-rank{rank}' if rank else ''}.pth.tar"


class StepRecorder:
    """Keeps the batches of the steps whose losses are not checked yet, and writes a dump of one of them.

    Parameters
    ----------
    config : INI text of the run
    metadata, world : classes and processes of the run
    net : its weights are dumped; the step must not have updated them when :meth:`write` is called
    folder : run folder
    """

    def __init__(self, config: str, metadata: Metadata, world: World, net: nn.Module, folder: Path) -> None:
        self.config = config
        self.metadata = metadata
        self.world = world
        self.net = net
        self.folder = folder
        self._kept: dict[int, tuple[Sequence[TrainingBatch], dict[str, Any]]] = {}

    def begin(self, step: int, batches: Sequence[TrainingBatch]) -> None:
        """Keep the batches of a step before it is taken, without a copy, and the RNG state."""
        self._kept[step] = (batches, rng_state(self.world.device))

    def clear(self) -> None:
        """Drop all steps so far: they succeeded."""
        self._kept.clear()

    def write(self, step: int, losses: dict[str, float], reason: str) -> Path | None:
        """Write the dump of a step atomically and return its path; None if the step was not kept.

        Raises
        ------
        SeamsegError
            if it cannot be written
        """
        if step not in self._kept:
            return None
        batches, rng = self._kept[step]
        content = {
            "config": self.config,
            "metadata": metadata_header(self.metadata),
            "state_dict": dict(network_state(self.net)),
            "rng": rng,
            "batches": [_plain(batch) for batch in batches],
            "losses": dict(losses),
            "step": step,
            "rank": self.world.rank,
            "world_size": self.world.size,
            "reason": reason,
        }
        path = dump_path(self.folder, step, self.world.rank)
        write_tensors(path, content)
        return path


def read_dump(path: str | Path) -> Dump:
    """Read a dump, refusing pickled code.

    Raises
    ------
    InputError
        if the file is missing, broken or not a dump
    """
    content = load_tensors(path, str(path))
    if not isinstance(content, dict) or any(key not in content for key in _KEYS):
        raise InputError(f"{path}: not a dump of a training step; a training that fails writes dump-step-*.pth.tar")
    try:
        dump = Dump(**{**content, "batches": [_typed(entry) for entry in content["batches"]]})
        if not all(isinstance(batch, Batch) for batch in dump.batches):
            raise ValueError("its batches are invalid")
        return dump
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: a dump that this version cannot read ({error})") from None


def _plain(value: Any) -> Any:
    """Convert a value to data that loads without pickled code: packed sequences, dataclasses and maps to dicts."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, PackedSequence):
        return {"packed": [_plain(t) for t in value]}
    if isinstance(value, Mapping):
        return {"mapping": {name: _plain(item) for name, item in value.items()}}
    if is_dataclass(value):
        kind = type(value).__name__
        values = {f.name: None if f.name in _COMPUTED else _plain(getattr(value, f.name)) for f in fields(value)}
        content = {_STORED_NAMES.get(name, name): stored for name, stored in values.items()}
        return {"kind": _STORED_NAMES.get(kind, kind), "fields": content}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value


def _typed(value: Any) -> Any:
    """Invert :func:`_plain`; creates no types but the dataclasses of `seamseg.structures`."""
    if isinstance(value, dict):
        if "packed" in value:
            return PackedSequence(value["packed"])
        if "mapping" in value:
            return {str(name): _typed(item) for name, item in value["mapping"].items()}
        name = str(value["kind"])
        kind = getattr(structures, _CODE_NAMES.get(name, name), None)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ValueError(f"unknown kind {value['kind']!r}")
        return kind(**{_CODE_NAMES.get(name, name): _typed(item) for name, item in value["fields"].items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_typed(item) for item in value)
    return value
