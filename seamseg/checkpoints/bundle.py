"""Open a trained model: a published zip, a folder, or a file of weights, with its configuration and classes."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

import torch
from torch import Tensor, nn

from seamseg.checkpoints.model_path import (
    CLASSES_NAME,
    CONFIG_NAME,
    METADATA_NAME,
    WEIGHTS_ENDING,
    local_model,
    read_object,
    snapshot_in,
)
from seamseg.checkpoints.snapshot import LoadReport, Snapshot, load_into, load_tensors, parse_snapshot
from seamseg.config import KINDS, Config, config_from_string, find_experiment, load_config
from seamseg.config.kinds import PANOPTIC, SEAMLESS, WHOLE
from seamseg.data.input_size import InputSize, reference_size
from seamseg.maps.formats.metadata import Metadata, metadata_of, parse_metadata, read_metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.utils.errors import InputError, lacks_memory, one_line
from seamseg.utils.files import decode_text, read_text
from seamseg.utils.limits import CONFIG_BYTES, MODEL_METADATA_BYTES, SNAPSHOT_BYTES, read_member

_VISTAS_EXPERIMENT = "vistas_wrn38"
"""Experiment of the published semantic network of Mapillary Vistas, whose file holds no configuration."""
_LAST_OF_WRN38 = "mod7.block1.convs.conv3.weight"


@dataclass(frozen=True)
class ModelFile:
    """A trained model, the licence of its weights, and `reference`, the input size of its own configuration."""

    config: Config
    metadata: Metadata
    snapshot: Snapshot
    name: str
    licence: str
    reference: InputSize


def open_model(
    path: str | Path,
    config: str | Path | None = None,
    meta: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> ModelFile:
    """Open a zip with a `*.tar` snapshot, a run folder, a folder of `seamseg convert-model`, `hf://...` or a snapshot.

    `config` (an INI file) and `meta` (`metadata.bin`, or a folder that has one) replace the model's own. The
    configuration decides the kind; without one, the modules do. A configuration of another kind can be given for
    weights that suffice for it: a panoptic network holds an instance segmentation network and a detector.
    """
    found = _find(path)
    snapshot = parse_snapshot(load_tensors(found.file, found.source), found.source)
    found = _with_published_classes(found, snapshot)
    own = kind_of(snapshot, found.name)
    chosen = _config(found, snapshot, config, overrides, own)
    other = [text for text in overrides if not text.startswith("dataloader.")]
    loading = (chosen if len(other) == len(overrides) else _config(found, snapshot, config, other, own)).dataloader
    reference = reference_size(loading.shortest_size, loading.longest_max_size)
    metadata = _metadata(found, snapshot, meta)
    network = chosen.general.network
    if (WHOLE in snapshot.state_dict) != (network != SEAMLESS):
        raise InputError(f"{found.name}: holds another network than [general] network = {network} of its configuration")
    have, need = KINDS[own], KINDS[chosen.general.kind]
    if network == SEAMLESS and not ({*need.modules} <= {*have.modules} and {*need.losses} <= {*have.losses}):
        raise InputError(f"{found.name}: is a model for {own}, not for {chosen.general.kind}")
    check_classes(snapshot, metadata, found.name)
    return ModelFile(chosen, metadata, snapshot, found.name, found.licence, reference)


def open_weights(path: str | Path) -> tuple[Snapshot, Metadata]:
    """Open the weights of a model, of whatever configuration, with their classes, which must be known."""
    found = _find(path)
    snapshot = parse_snapshot(load_tensors(found.file, found.source), found.source)
    found = _with_published_classes(found, snapshot)
    if found.metadata is None and snapshot.metadata is None:
        raise InputError(
            f"{found.name}: holds no names of classes: name a folder that holds the snapshot and the "
            f"{METADATA_NAME} of its training"
        )
    metadata = _metadata(found, snapshot, None)
    check_classes(snapshot, metadata, found.name)
    return snapshot, metadata


def weights_file(path: Path) -> tuple[Path | IO[bytes], str]:
    """Return a file of weights and its name for errors: of a published zip the snapshot in it."""
    found = _from_zip(path)
    return (path, str(path)) if found is None else (found.file, found.source)


def _find(path: str | Path) -> _Parts:
    """Find the weights, the configuration and the classes of a model."""
    path = local_model(path)
    if path.suffix == WEIGHTS_ENDING or path.is_dir():
        weights = snapshot_in(path)
        config, metadata, stated = (weights.with_name(name) for name in (CONFIG_NAME, METADATA_NAME, CLASSES_NAME))
        classes, content = None, {}
        if metadata.is_file():
            classes = read_metadata(metadata, MODEL_METADATA_BYTES)
        elif stated.is_file():
            content = read_statement(stated)
            classes = metadata_of(content, str(stated))
        text = read_text(config, "configuration", CONFIG_BYTES) if config.is_file() else None
        return _Parts(weights, str(weights), text, classes, str(weights), str(content.get("licence") or ""))
    return _from_zip(path) or _Parts(path, str(path), None, None, str(path))


def _with_published_classes(found: _Parts, snapshot: Snapshot) -> _Parts:
    """Add the packaged configuration and classes to the published network without one, recognised by its layers."""
    state = snapshot.state_dict
    classifier, last = (state.get(part, {}).get(key) for part, key in (("cls", "weight"), ("body", _LAST_OF_WRN38)))
    recognised = isinstance(classifier, Tensor) and tuple(classifier.shape) == (65, 256, 1, 1) and last is not None
    if not recognised or "head" not in state or snapshot.config.strip() or found.config_text is not None:
        return found
    text = find_experiment(_VISTAS_EXPERIMENT).read_text(encoding="utf-8")
    return replace(found, config_text=text, metadata=found.metadata or published_classes())


@dataclass(frozen=True)
class _Parts:
    file: Path | IO[bytes]  # of the weights
    source: str  # its name for errors
    config_text: str | None
    metadata: Metadata | None
    name: str
    licence: str = ""


Net = TypeVar("Net", bound=nn.Module)


def load_built(build: Callable[[], Net], snapshot: Snapshot, name: str) -> tuple[Net, LoadReport]:
    """Build a network and load a snapshot; InputError if its tensors do not fit, or the network cannot be built.

    The network is built on the meta device, and gets memory once the names and shapes of its tensors fit.
    """
    try:
        with torch.device("meta"):
            net = build()
    except RuntimeError as error:
        if lacks_memory(error):
            raise
        raise InputError(f"{name}: the network of its configuration cannot be built: {one_line(error)}") from error
    ours = ("seamseg", "torch")
    others = [module for module in net.modules() if type(module).__module__.partition(".")[0] not in ours]
    if any(tensor.is_meta for module in others for tensor in (*module.parameters(), *module.buffers())):
        net = build()  # other libraries may keep tensors that no file holds
    return net, load_into(net, snapshot, strict=True, name=name)


STATEMENT_FORMAT = 1
"""Version of `metadata.json`; a reader refuses files of another one."""


def read_statement(path: Path) -> dict[str, Any]:
    """Read `metadata.json` of a folder of `seamseg convert-model`; InputError also for another format."""
    content = read_object(path, "list of classes")
    if content.get("format") != STATEMENT_FORMAT:
        raise InputError(
            f"{path}: has format {content.get('format')!r:.80}, this version reads {STATEMENT_FORMAT} of "
            "`seamseg convert-model`: update seamseg"
        )
    return content


def _from_zip(path: Path) -> _Parts | None:
    """Return what a published model holds; None for a file that is no zip file, or one of `torch.save`."""
    try:
        if not zipfile.is_zipfile(path):  # raises BadZipFile for one of several disks
            return None
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if not Path(n).name.startswith(".") and "__MACOSX" not in n]
            if any(Path(name).name == "data.pkl" for name in names):
                return None
            snapshot, config, metadata = (_member(names, p, path) for p in ("*.tar", CONFIG_NAME, METADATA_NAME))
            if snapshot is None:
                raise InputError(f"{path}: this zip holds no *.tar snapshot: it is not a published model")
            # read into memory: no path of the archive is used on disk
            wanted = ((config, CONFIG_BYTES, "configuration"), (metadata, MODEL_METADATA_BYTES, "metadata file"))
            content = {m: read_member(archive, m, limit, what) for m, limit, what in wanted if m is not None}
            content[snapshot] = read_member(archive, snapshot, SNAPSHOT_BYTES, "snapshot")
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        # RuntimeError: encrypted, or an unsupported compression; ValueError: a name that is not UTF-8
        raise InputError(f"{path}: damaged or unreadable zip ({error}); download it again") from None
    return _Parts(
        io.BytesIO(content[snapshot]),
        f"{path}:{snapshot}",
        None if config is None else decode_text(content[config], f"{path}:{config}", "configuration"),
        None if metadata is None else parse_metadata(content[metadata], f"{path}:{metadata}"),
        str(path),
    )


def _member(names: list[str], pattern: str, path: Path) -> str | None:
    found = [name for name in names if PurePosixPath(name).match(pattern)]
    if len(found) > 1:
        raise InputError(f"{path}: holds {len(found)} files {pattern} ({', '.join(found[:3])}), expected one")
    return found[0] if found else None


def _config(
    found: _Parts, snapshot: Snapshot, config: str | Path | None, overrides: Sequence[str], kind: str
) -> Config:
    if config is not None:
        return load_config(config, kind, overrides)
    text = found.config_text if found.config_text is not None else snapshot.config
    if not text.strip():
        raise InputError(f"{found.name}: holds no configuration; give its INI file with `config=FILE`")
    try:
        return config_from_string(text, kind, f"config of {found.name}", overrides)
    except InputError as error:
        for record in snapshot.components:
            if record.missing and f"no {record.kind} {record.name!r}" in str(error):
                raise InputError(f"{found.name}: {record.missing}") from None
        raise


def _metadata(found: _Parts, snapshot: Snapshot, meta: str | Path | None) -> Metadata:
    if meta is not None:
        path = Path(meta)
        if path.suffix == ".json":
            return metadata_of(read_statement(path), str(path))
        return read_metadata(path / METADATA_NAME if path.is_dir() else path, MODEL_METADATA_BYTES)
    if found.metadata is not None:
        return found.metadata
    if snapshot.metadata is not None:
        return metadata_of(snapshot.metadata, found.name)
    raise InputError(f"{found.name}: holds no classes; give metadata.bin with `meta=FILE`")


def kind_of(snapshot: Snapshot, name: str) -> str:
    """Return the kind of network of a snapshot, according to its modules; InputError if it holds no whole network.

    Panoptic for a custom network, whose configuration states its kind.
    """
    state = snapshot.state_dict
    if WHOLE in state:
        return PANOPTIC
    missing = {name: [part for part in kind.modules if part not in state] for name, kind in KINDS.items()}
    if all(missing.values()):
        fewest = min(missing.values(), key=len)
        raise InputError(f"{name}: has no {', '.join(fewest)}: pre-trained weights, not a whole network")
    whole = [kind for kind, parts in missing.items() if not parts]
    layers = [str(key) for key in state.get("roi_head", ())]
    # layers of a custom head have other names
    masks = any("roi_msk" in layer for layer in layers) or not any("roi_cls" in layer for layer in layers)
    return next((kind for kind in whole if masks or not KINDS[kind].has_masks), whole[0])


def check_classes(
    snapshot: Snapshot,
    metadata: Metadata,
    name: str,
    source: str = "the metadata lists",
    remedy: str = "use the metadata.bin it was trained with",
) -> None:
    """Raise InputError, with `source` and `remedy`, if a snapshot's heads have another number of classes."""
    for part, key, minus, wanted, what in (
        ("sem_head", "conv_sem.weight", 0, metadata.num_classes, "classes"),
        ("cls", "weight", 0, metadata.num_classes, "classes"),
        ("roi_head", "roi_cls.weight", 1, metadata.num_thing, "thing classes"),
    ):
        tensor = (snapshot.state_dict.get(part) or {}).get(key)
        trained = tensor.shape[0] - minus if isinstance(tensor, Tensor) and tensor.dim() > 0 else wanted
        if trained != wanted:
            raise InputError(f"{name}: was trained on {trained} {what}, {source} {wanted}; {remedy}")
