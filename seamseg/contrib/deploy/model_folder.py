"""Write a trained model as a folder without pickles: weights as safetensors, configuration and classes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from seamseg.checkpoints.bundle import STATEMENT_FORMAT, load_network, open_model, read_statement
from seamseg.checkpoints.foreign import is_foreign
from seamseg.checkpoints.model_path import is_exported, local_model, weights_at
from seamseg.checkpoints.names import (
    CLASSES_NAME,
    CLASSIFIER_CLASSES_NAME,
    CLASSIFIER_CONFIG_NAME,
    CONFIG_NAME,
    SNAPSHOT_NAMES,
    WEIGHTS_NAME,
)
from seamseg.checkpoints.snapshot import network_state
from seamseg.checkpoints.weights_file import write_weights
from seamseg.config import Config, config_to_string
from seamseg.contrib.classification.checkpoint import CLASSIFICATION, class_names, classifier_config, load_classifier
from seamseg.contrib.classification.config import ClassifierConfig, load_classifier_config
from seamseg.maps.formats.metadata import Metadata, metadata_header
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import PARTIAL, cannot_write, refuse_existing, write_atomically, write_json
from seamseg.version import __version__

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class ConversionOptions:
    """Options of :func:`convert_model`, as of the flags of `seamseg convert-model`."""

    licence: str = ""
    config: str | Path | None = None
    meta: str | Path | None = None
    overrides: Sequence[str] = ()
    force: bool = False


@dataclass(frozen=True)
class ConvertedModel:
    """Content of a folder: weights by name or part; the classes of a classifier are things without colours."""

    kind: str
    config: Config | ClassifierConfig
    metadata: Metadata
    weights: Mapping[str, Any]
    licence: str

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without the statistics of the norms."""
        parts = (value if isinstance(value, Mapping) else {key: value} for key, value in self.weights.items())
        held = ((key, tensor) for part in parts for key, tensor in part.items())
        return sum(tensor.numel() for key, tensor in held if not key.endswith(_STATISTICS))


def convert_model(
    model: str | Path, out: str | Path, options: ConversionOptions = ConversionOptions()
) -> ConvertedModel:
    """Write a trained model as a folder that loads without a pickle, wherever the model does.

    The tensors are those that inference uses, unchanged: of a model with a moving average that average.

    Parameters
    ----------
    model : see :func:`seamseg.checkpoints.bundle.open_model`; for a classifier its folder, or its checkpoint with
        `config`
    out : folder to write: `model.safetensors`, `metadata.json` and `config.ini`; for a classifier `config.json` and
        `classes.json`
    options : licence, configuration and classes

    Raises
    ------
    InputError
        if the model is missing, broken, or does not match its configuration, safetensors is not installed, or the
        folder holds another model
    SeamsegError
        if the folder cannot be written
    """
    folder, path = Path(out), local_model(model)
    if is_exported(path):
        raise InputError(f"{path}: is an exported network: give the model that it was exported from")
    if is_foreign(path):
        raise InputError(f"{path}: is no network of seamseg: share it as it is, with its own model card")
    check_folder(folder, options.force)
    require_packages("safetensors", what=str(folder / WEIGHTS_NAME))
    config = classifier_config(path, options.config)
    made = _network(path, options) if config is None else _classifier(path, config, options)
    with filling(folder) as scratch:
        _write(made, scratch)
    return made


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder whose files are moved to `folder` if the block ends without an error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", suffix=PARTIAL, dir=folder) as scratch:
            yield Path(scratch)
            # a folder without weights is not a model: they go first and come last
            (folder / WEIGHTS_NAME).unlink(missing_ok=True)
            for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == WEIGHTS_NAME):
                os.replace(file, folder / file.name)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _write(made: ConvertedModel, folder: Path) -> None:
    write_weights(folder / WEIGHTS_NAME, made.weights)
    if isinstance(made.config, Config):
        write_atomically(folder / CONFIG_NAME, config_to_string(made.config).encode())
        classes = metadata_header(made.metadata)
    else:
        write_json(folder / CLASSIFIER_CONFIG_NAME, made.config.to_json(), indent=2)
        write_json(folder / CLASSIFIER_CLASSES_NAME, made.metadata.categories, indent=1)
        classes = {"categories": made.metadata.categories}
    statement = {"format": STATEMENT_FORMAT, "version": __version__, "kind": made.kind, "licence": made.licence}
    write_json(folder / CLASSES_NAME, statement | classes, indent=1)


def check_folder(folder: Path, force: bool) -> None:
    """Raise InputError unless a folder is missing, empty or, with `force`, one of an earlier conversion."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, the output is a folder")
    held = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    other = held & {*SNAPSHOT_NAMES}
    if other or (held and not {WEIGHTS_NAME, CLASSES_NAME} <= held):
        raise InputError(f"{folder}: holds other files ({min(other or held)}): choose a new folder")
    if held:
        refuse_existing(folder, force)
        # of this project, not only files of these names
        read_statement(folder / CLASSES_NAME)


def _network(path: Path, options: ConversionOptions) -> ConvertedModel:
    opened = open_model(path, options.config, options.meta, list(options.overrides))
    net, _ = load_network(opened)
    # paths on this machine, which a model does not need
    config = opened.config
    config = replace(config, body=replace(config.body, weights=""), dataloader=replace(config.dataloader, coco_gt=""))
    classes, licence = opened.metadata.without_images(), options.licence or opened.licence
    return ConvertedModel(config.kind, config, classes, network_state(net), licence)


def _classifier(path: Path, config: str | Path, options: ConversionOptions) -> ConvertedModel:
    if options.overrides or options.meta is not None:
        given = "`overrides`" if options.overrides else "`meta`"
        raise InputError(f"{given} has no effect on a classifier")
    settings = load_classifier_config(config)
    names = class_names(path, settings)
    state: dict[str, Tensor] = load_classifier(config, weights_at(path), "cpu").state_dict()
    stated = (path if path.is_dir() else path.parent) / CLASSES_NAME
    licence = options.licence or (str(read_statement(stated).get("licence", "")) if stated.is_file() else "")
    metadata = Metadata(0, len(names), names, [], [])
    return ConvertedModel(CLASSIFICATION, settings, metadata, state, licence)
