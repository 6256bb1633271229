"""Snapshots: content, writing, reading, and loading into a network (docs/contract.md, section 1)."""

from __future__ import annotations

import importlib
import io
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.checkpoints.model_path import TRANSFORMERS_CONFIG_NAME, WEIGHTS_ENDING
from seamseg.config.components import Record
from seamseg.config.kinds import KINDS, WHOLE
from seamseg.maps.images import PHOTO_ENDINGS
from seamseg.utils.errors import InputError, one_line, require_module
from seamseg.utils.files import nearest_path, replacing

NETWORK_MODULES = (*dict.fromkeys(module for kind in KINDS.values() for module in kind.modules), "heads", WHOLE)
"""The parts of all networks, each with its own state dict in a snapshot; `heads` are custom ones."""

_MULTIARRAY = "numpy._core.multiarray", "numpy.core.multiarray"
_multiarray: Any = importlib.import_module(_MULTIARRAY[0] if hasattr(np, "_core") else _MULTIARRAY[1])
_PLAIN_DATA: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "u1", "?"))]
_PLAIN_DATA += [(getattr(_multiarray, f), f"{name}.{f}") for f in ("scalar", "_reconstruct") for name in _MULTIARRAY]
"""Scores and meters of old snapshots may be numpy scalars and arrays, with the module names of old numpy releases."""


@dataclass
class Snapshot:
    """The content of a snapshot.

    Attributes
    ----------
    config : INI text of the configuration it was trained with
    state_dict : state by part: body, rpn_head, roi_head, sem_head, optimizer, <name>_meter; and optionally `ema`: the
        moving average of the weights, again by part
    training_meta : epoch, last_score, best_score, global_step
    metadata : the classes it was trained on, as in `metadata.bin` without the images; None in the original's
    resume : the rest of the state for a bit-exact resume, see :mod:`seamseg.training.checkpointing.checkpoint`; None in
        the original's
    components : the custom ones that the training used
    """

    config: str
    state_dict: dict[str, Any]
    training_meta: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    resume: dict[str, Any] | None = None
    components: tuple[Record, ...] = ()

    def weights(self, averaged: bool = True) -> dict[str, Any]:
        """Return the network's state by part: the moving average, if there is one and it is wanted, or the weights."""
        return self.state_dict | (self.state_dict.get("ema", {}) if averaged else {})


@dataclass(frozen=True)
class LoadReport:
    """The skipped tensors as `part.key (reason)`, the number of loaded ones, and whether those are averages.

    `fresh` are lines about classes that start at random, where the classes of the file are others; `classes` are the
    names of those, if the file states them and they were not mapped.
    """

    skipped: list[str]
    loaded: int
    averaged: bool = False
    fresh: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = " of the moving average" if self.averaged else ""
        if not self.skipped:
            return f"loaded {self.loaded} tensors{of}"
        shown = ", ".join(self.skipped[:5]) + (", ..." if len(self.skipped) > 5 else "")
        return f"loaded {self.loaded} tensors{of}, skipped {len(self.skipped)}: {shown}"


def snapshot_content(snapshot: Snapshot) -> dict[str, Any]:
    """Return the content of the file of a snapshot (docs/contract.md, section 1)."""
    content = {name: value for name, value in vars(snapshot).items() if value is not None}
    components = content.pop("components")
    return content | ({"components": [asdict(record) for record in components]} if components else {})


def check_storable(value: Any, where: str) -> None:
    """Raise InputError, which begins with `where`, if a snapshot with a value could be written, but not be opened."""
    if type(value) is Tensor and value.layout == torch.strided and not (value.is_quantized or value.is_nested):
        plain = not value.is_meta
    else:
        plain = type(value) in (int, float, str, bool, type(None))
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            check_storable(key, f"{where}: the key {key!r:.80}")
            check_storable(item, f"{where}[{key!r:.80}]")
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            check_storable(item, f"{where}[{number}]")
    elif not plain:
        file = io.BytesIO()
        try:
            torch.save(value, file)
            file.seek(0)
            load_tensors(file, where)
        except Exception:
            kind = type(value).__name__
            raise InputError(
                f"{where} is a {kind}, which snapshots cannot hold: return numbers, texts, tensors, lists and dicts"
            ) from None


def write_tensors(path: Path, content: Any) -> None:
    """Write a file with `torch.save` atomically, even if the machine crashes during the write."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch's zip writer masks a full disk and Ctrl-C
            if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
                raise error.__context__ from error
            raise OSError(str(error).splitlines()[0]) from error
        file.flush()
        os.fsync(file.fileno())


def load_snapshot(file: str | Path | IO[bytes], name: str | None = None) -> Snapshot:
    """Read a snapshot of this project or of the original, called `name` in errors; pickled code is refused."""
    name = name or str(file)
    return parse_snapshot(load_tensors(file, name), name)


def parse_snapshot(content: Any, name: str) -> Snapshot:
    """Return the snapshot that a file holds; `name` is the file's, for errors as of :func:`load_snapshot`."""
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not any(part in state for part in NETWORK_MODULES):
        if name.endswith(WEIGHTS_ENDING):
            raise InputError(
                f"{name}: not the weights of a network of seamseg, whose tensors are named `body.*` etc.; a network of "
                f"transformers is a folder with a {TRANSFORMERS_CONFIG_NAME} beside them that states its model_type"
            )
        if isinstance(state, Mapping) and any(str(key).startswith("module.") for key in state):
            raise InputError(f"{name}: a checkpoint of a classifier? `seamseg export` it, and use the exported file")
        raise InputError(
            f"{name}: not a snapshot of this network: "
            f"it must hold 'config' and a 'state_dict' with {', '.join(NETWORK_MODULES)}"
        )
    average = state.get("ema", {})
    for weights in (state, average):
        for part in NETWORK_MODULES:
            if not isinstance(weights, Mapping) or not isinstance(weights.get(part, {}), Mapping):
                kind = type(weights.get(part) if isinstance(weights, Mapping) else weights).__name__
                raise InputError(f"{name}: its {part!r} is not a state dict but a {kind}")
    config = content.get("config") or ""
    if not isinstance(config, str):
        raise InputError(f"{name}: its 'config' is not text but a {type(config).__name__}")
    metadata, training, resume = (content.get(key) for key in ("metadata", "training_meta", "resume"))
    return Snapshot(
        config=config,
        state_dict=dict(state),
        training_meta=dict(training) if isinstance(training, Mapping) else {},
        metadata=dict(metadata) if isinstance(metadata, Mapping) else None,
        resume=dict(resume) if isinstance(resume, Mapping) else None,
        components=parse_records(content["components"], name) if "components" in content else (),
    )


def load_tensors(file: str | Path | IO[bytes], name: str, mmap: bool = False) -> Any:
    """Read tensors and plain data, on the CPU, with `torch.load`, or a file of weights, `*.safetensors`.

    With `mmap`, the tensors of a path are mapped into memory instead of read. Weights are returned as `state_dict`, by
    part if a network of ours has such. InputError if the file cannot be read or contains code.
    """
    if isinstance(file, (str, Path)) and str(file).endswith(WEIGHTS_ENDING):
        return {"state_dict": _by_part(read_weights(file, name))}
    head: bytes | None = None
    try:
        with open(file, "rb") if isinstance(file, (str, Path)) else nullcontext(file) as opened:
            head = opened.read(2)
            opened.seek(0)
            with torch.serialization.safe_globals(_PLAIN_DATA), warnings.catch_warnings():
                # pickles that torch did not write; they raise an error
                warnings.filterwarnings("ignore", message="Detected pickle protocol")
                return torch.load(file if mmap else opened, map_location="cpu", weights_only=True, mmap=mmap)
    except InputError:
        raise
    except Exception as error:  # parsing untrusted bytes can raise any exception
        if head is None and isinstance(error, FileNotFoundError):
            raise InputError(f"{name}: no such file{nearest_path(str(file))}") from None
        if head is None and isinstance(error, OSError):
            raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
        if code := re.search(r"GLOBAL ([\w.]+)", str(error)):
            problem = f"refused: it holds pickled code ({code[1]}), which could run any program when loaded"
        elif head in (None, b"", b"PK", b"\x80\x02"):
            # torch writes zip files; early releases wrote pickles
            problem = "a truncated or damaged snapshot; copy it again"
        else:
            problem = "not a snapshot: it was not written by torch.save"
        if code is None and name.lower().endswith(PHOTO_ENDINGS):
            problem += "; it is an image: the model comes before it"
        raise InputError(f"{name}: {problem}") from None


def read_weights(path: str | Path, name: str) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, on the CPU; they are mapped into memory. Errors call the file `name`."""
    load_file = require_module("safetensors.torch", name).load_file
    try:
        with open(path, "rb") as file:
            if file.read(23) == b"version https://git-lfs":
                raise InputError(f"{name}: is a Git LFS pointer: run `git lfs pull`")
        return dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"{name}: no such file{nearest_path(path)}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    except InputError:
        raise
    except Exception as error:  # parsing untrusted bytes can raise any exception
        reason = one_line(error)[:120]
        raise InputError(f"{name}: truncated, damaged, or not a safetensors file ({reason}); copy it again") from None


def write_weights(path: Path, state: Mapping[str, Mapping[str, Tensor]] | Mapping[str, Tensor]) -> None:
    """Write tensors by name, or state dicts by part, whose tensors get names `PART.KEY`, as a safetensors file."""
    save_file = require_module("safetensors.torch", str(path)).save_file
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        tensors |= {name: value} if isinstance(value, Tensor) else {f"{name}.{k}": v for k, v in value.items()}
    for name, tensor in tensors.items():
        # safetensors takes no parts of a larger storage
        if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
    with replacing(path) as temporary:
        # the library makes files that only their owner may read
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(tensors, temporary, {"format": "pt"})
        except OSError:
            raise
        except Exception as error:  # a full disk is an error of the library
            raise OSError(one_line(error)[:200]) from error
        temporary.chmod(mode)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())


def _by_part(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return state dicts by part if all tensors are named `PART.KEY`, else the tensors as they are."""
    parts: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part, _, key = name.partition(".")
        if part not in NETWORK_MODULES or not key:
            return dict(tensors)
        parts.setdefault(part, {})[key] = tensor
    return parts


def load_into(
    net: nn.Module,
    snapshot: Snapshot,
    strict: bool = True,
    name: str = "snapshot",
    averaged: bool = True,
) -> LoadReport:
    """Load the weights of a snapshot, or their moving average if it has one, into a network.

    Tensors on the meta device get their memory, on the CPU, once the snapshot fits. Missing and unexpected parts or
    tensors and other shapes are skipped and reported; if `strict`, InputError. Values that are not finite are an
    InputError, too.
    """
    state, accepted, skipped = snapshot.weights(averaged), {}, []
    for part, module in network_parts(net).items():
        if part in state:
            accepted[part], others = _fitting(module, state[part], part, name)
            skipped += others
        elif strict:
            raise InputError(f"{name}: has no {part!r}: it is a snapshot of another kind of network")
        else:
            skipped.append(f"{part} (not in the file)")
    if strict and skipped:
        raise InputError(
            f"{name}: does not fit this network: {len(skipped)} tensors differ, first {skipped[0]}; "
            "is it another architecture, configuration or number of classes?"
        )
    for module in net.modules():
        if any(tensor.is_meta for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            # `to_empty` would import sympy, in a third of a second
            module._apply(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype), recurse=False)
    for part, tensors in accepted.items():
        network_parts(net)[part].load_state_dict(tensors, strict=False)
    return LoadReport(skipped, sum(map(len, accepted.values())), averaged and "ema" in snapshot.state_dict)


def load_module(module: nn.Module, state: Mapping[str, Tensor], part: str, name: str) -> LoadReport:
    """Load the tensors of `state`, of the file `name`, whose name and shape fit a module; report missing and others.

    Counters of norm layers, which old snapshots lack, are not reported, nor are layers that a module has in networks of
    other kinds only: those whose names start with one of its `unused_layers`. Keys of a bare body (`mod1...`) also fit
    a body with a pyramid (`backbone.mod1...`).
    """
    accepted, skipped = _fitting(module, state, part, name)
    module.load_state_dict(accepted, strict=False)
    return LoadReport(skipped, len(accepted))


def _fitting(
    module: nn.Module, state: Mapping[str, Tensor], part: str, name: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors that fit, which must be finite, and lines about the others."""
    own = module.state_dict()
    if not any(key in own for key in state) and any(f"backbone.{key}" in own for key in state):
        state = {f"backbone.{key}": value for key, value in state.items()}
    skipped: list[str] = []
    accepted: dict[str, Tensor] = {}
    counter = "num_batches_tracked"
    for key, value in own.items():
        if key not in state:
            if not key.endswith(counter):
                skipped.append(f"{part}.{key} (not in the file)")
        elif not isinstance(state[key], Tensor):
            skipped.append(f"{part}.{key} (not a tensor)")
        elif state[key].shape != value.shape:
            skipped.append(f"{part}.{key} ({_shape(state[key])} in the file, {_shape(value)} in the network)")
        # the sum needs no memory; finite values may overflow it
        elif value.is_floating_point() and not (state[key].sum().isfinite() or state[key].isfinite().all()):
            raise InputError(
                f"{name}: {part}.{key} holds values that are not finite, as of a training that has diverged: use an "
                "earlier snapshot"
            )
        else:
            accepted[key] = state[key]
    unused = tuple(getattr(module, "unused_layers", ()))
    unknown = [key for key in map(str, state) if key not in own and not key.endswith(counter)]
    skipped += [f"{part}.{key} (not in the network)" for key in unknown if not key.startswith(unused)]
    return accepted, skipped


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


def network_parts(net: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of :data:`NETWORK_MODULES` that a network has, by name."""
    parts = {part: getattr(net, part, None) for part in NETWORK_MODULES}
    return {part: module for part, module in parts.items() if module is not None}


def network_state(net: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return the state of a network by part, in the layout of a snapshot, on the CPU.

    Tensors that are on the CPU already are not copied: write them before the next step.
    """
    return {
        part: {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
        for part, module in network_parts(net).items()
    }


def parse_records(content: Any, source: str) -> tuple[Record, ...]:
    """Return the records that a snapshot holds; InputError, with its name `source`, if they are damaged."""
    try:
        return tuple(Record(*(str(record[spec.name])[:80] for spec in fields(Record))) for record in content)
    except (KeyError, TypeError, IndexError):
        raise InputError(f"{source}: its list of components is damaged") from None
