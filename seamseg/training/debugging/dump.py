"""What a training leaves of a step that went wrong, so that the step can be repeated: see `replay`.

A dump holds the weights before the step, the batches, and the state of chance at its start; all plain tensors and
data, so that nobody has to trust it to load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seamseg import structures
from seamseg.checkpoints.bundle import metadata_header
from seamseg.checkpoints.snapshot import load_tensors, network_state, write_tensors
from seamseg.config import Config, config_to_string
from seamseg.formats.metadata import Metadata
from seamseg.structures import Batch, PackedSequence
from seamseg.training.checkpointing.rng import random_state
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

_KEYS = ("config", "metadata", "state_dict", "rng", "batches", "losses", "step", "rank")
_STORED_NAMES = {"target_info": "facts", "deferred": "pending", "DeferredTransform": "Pending"}
"""Classes and fields whose name in a dump is not that in the code: dumps of earlier versions stay readable."""
_CODE_NAMES = {stored: name for name, stored in _STORED_NAMES.items()}


@dataclass(frozen=True)
class Dump:
    """A step that went wrong.

    Attributes
    ----------
    config, metadata : INI text, and the classes as in a snapshot
    state_dict : weights by part, as in a snapshot, before the step
    rng : state of chance at its start, see :func:`seamseg.training.checkpointing.rng.random_state`
    batches : what this process trained on, as the loader made it
    losses : what it found, by name; `loss` is the weighted sum
    step, rank, world_size : which step, of which process of how many
    reason : what was wrong with it
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
    """Where the dump of a step lies; processes beyond the first have their rank in the name.

    A training that comes by the same step again replaces it; others leave it alone.
    """
    return folder / f"dump-step-{step:08d}{f'-rank{rank}' if rank else ''}.pth.tar"


class Recorder:
    """Keeps the batches of the steps nobody has looked at yet, and writes a dump of one of them.

    Parameters
    ----------
    config, metadata, world : of the run
    net : whose weights are dumped; nothing may have trained on the step's batches when :meth:`write` is called
    folder : run folder
    """

    def __init__(self, config: Config, metadata: Metadata, world: World, net: nn.Module, folder: Path) -> None:
        self.config = config
        self.metadata = metadata
        self.world = world
        self.net = net
        self.folder = folder
        self._kept: dict[int, tuple[Sequence[Batch], dict[str, Any]]] = {}

    def begin(self, step: int, batches: Sequence[Batch]) -> None:
        """Remember a step that is about to be made; batches are not copied."""
        self._kept[step] = (batches, random_state(self.world.device))

    def forget(self) -> None:
        """All steps so far were fine."""
        self._kept.clear()

    def write(self, step: int, losses: dict[str, float], reason: str) -> Path | None:
        """The dump of a step, which appears whole or not at all; None if the step was not remembered.

        Raises
        ------
        SeamsegError
            if it cannot be written
        """
        if step not in self._kept:
            return None
        batches, rng = self._kept[step]
        content = {
            "config": config_to_string(self.config),
            "metadata": metadata_header(self.metadata),
            "state_dict": dict(network_state(self.net)),
            "rng": rng,
            # follows from the targets
            "batches": [_plain(replace(batch, target_info=None)) for batch in batches],
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
    """Read a dump; pickled code in it is refused.

    Raises
    ------
    InputError
        if the file is missing, broken or no dump
    """
    content = load_tensors(path, str(path))
    if not isinstance(content, dict) or any(key not in content for key in _KEYS):
        raise InputError(f"{path}: not a dump of a training step; a training that stops writes dump-step-*.pth.tar")
    try:
        dump = Dump(**{**content, "batches": [_typed(entry) for entry in content["batches"]]})
        if not all(isinstance(batch, Batch) for batch in dump.batches):
            raise ValueError("its batches are none")
        return dump
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: a dump that this version cannot read ({error})") from None


def _plain(value: Any) -> Any:
    """A value as data that loads without pickled code: packed sequences and dataclasses as dicts."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, PackedSequence):
        return {"packed": [_plain(t) for t in value]}
    if is_dataclass(value):
        kind = type(value).__name__
        content = {_STORED_NAMES.get(f.name, f.name): _plain(getattr(value, f.name)) for f in fields(value)}
        return {"kind": _STORED_NAMES.get(kind, kind), "fields": content}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value


def _typed(value: Any) -> Any:
    """The inverse of :func:`_plain`; makes nothing but the dataclasses of `seamseg.structures`."""
    if isinstance(value, dict):
        if "packed" in value:
            return PackedSequence(value["packed"])
        kind = getattr(structures, _CODE_NAMES.get(value["kind"], value["kind"]), None)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise ValueError(f"unknown kind {value['kind']!r}")
        return kind(**{_CODE_NAMES.get(name, name): _typed(item) for name, item in value["fields"].items()})
    if isinstance(value, (list, tuple)):
        return type(value)(_typed(item) for item in value)
    return value
