"""Write a trained model as a folder without pickles: weights as safetensors, configuration and classes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from seamseg.checkpoints.bundle import STATEMENT_FORMAT, load_built, open_model, read_statement
from seamseg.checkpoints.model_path import (
    CLASSES_NAME,
    CLASSIFIER_CLASSES_NAME,
    CLASSIFIER_CONFIG_NAME,
    CONFIG_NAME,
    FOREIGN,
    SNAPSHOT_NAMES,
    WEIGHTS_NAME,
    library_of,
    local_model,
)
from seamseg.checkpoints.snapshot import network_state, write_weights
from seamseg.config import config_to_string
from seamseg.contrib.classification.checkpoint import CLASSIFICATION, OpenedClassifier, open_classifier
from seamseg.contrib.deploy.options import ConversionOptions
from seamseg.inference.options import InferenceOptions
from seamseg.maps.formats.metadata import Metadata, metadata_header
from seamseg.models.build import build_network
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import PARTIAL, cannot_write, refuse_existing, write_atomically, write_json
from seamseg.version import __version__

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class ConvertedModel:
    """Content of a folder, and facts for its card; in `use` and `command` `{}` is the model."""

    kind: str
    task: str
    main_score: str
    metadata: Metadata
    weights: Mapping[str, Any]
    licence: str
    files: Mapping[str, str]
    network: Mapping[str, str]
    use: str
    command: str

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without the statistics of the norms."""
        parts = (value if isinstance(value, Mapping) else {key: value} for key, value in self.weights.items())
        held = ((key, tensor) for part in parts for key, tensor in part.items())
        return sum(tensor.numel() for key, tensor in held if not key.endswith(_STATISTICS))


def convert_model(
    model: str | Path,
    out: str | Path,
    options: ConversionOptions = ConversionOptions(),  # noqa: B008  # frozen
) -> ConvertedModel:
    """Write a trained model as a folder that loads without a pickle, wherever the model does.

    The tensors are those that inference uses, unchanged: of a model with a moving average that average. A classifier is
    given by its folder, or by its checkpoint with `config`. The folder gets `model.safetensors`, `metadata.json` and
    `config.ini`; of a classifier `config.json` and `classes.json`. InputError if the model is broken or does not match
    its configuration, or the folder holds another model.
    """
    folder, path = Path(out), local_model(model)
    if library_of(path) == "exported":
        raise InputError(f"{path}: is an exported network: give the model that it was exported from")
    if library_of(path) in FOREIGN:
        raise InputError(f"{path}: is no network of seamseg: share it as it is, with its own model card")
    check_folder(folder, options.force)
    require_packages("safetensors", what=str(folder / WEIGHTS_NAME))
    classifier = open_classifier(path, options.config)
    made = _network(path, options) if classifier is None else _classifier(path, classifier, options)
    with filling(folder) as scratch:
        write_weights(scratch / WEIGHTS_NAME, made.weights)
        for name, text in made.files.items():
            write_atomically(scratch / name, text.encode())
        classes = metadata_header(made.metadata) if made.metadata.palette else {"categories": made.metadata.categories}
        statement = {"format": STATEMENT_FORMAT, "version": __version__, "kind": made.kind, "licence": made.licence}
        write_json(scratch / CLASSES_NAME, statement | classes, indent=1)
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


def _network(path: Path, options: ConversionOptions) -> ConvertedModel:
    opened = open_model(path, options.config, options.meta, list(options.overrides))
    build = partial(build_network, opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
    net, _ = load_built(build, opened.snapshot, opened.name)
    # paths on this machine, which a model does not need
    config = opened.config
    config = replace(config, body=replace(config.body, weights=""), dataloader=replace(config.dataloader, coco_gt=""))
    result = net.result_type.__name__
    loading, found = config.dataloader, InferenceOptions().input_size(config)
    size = f"shortest side {found.shortest_size}, longest at most {found.longest_max_size} pixels"
    if found.longest_size is not None:
        size = f"longest side {found.longest_size} pixels"
    return ConvertedModel(
        kind=config.general.kind,
        task=config.parts_of_kind.task,
        main_score=config.parts_of_kind.main_score,
        metadata=replace(opened.metadata, images=[]),
        weights=network_state(net),
        licence=options.licence or opened.licence,
        files={CONFIG_NAME: config_to_string(config)},
        network={
            "backbone": config.body.body,
            "input": size,
            "mean": str(loading.rgb_mean),
            "std": str(loading.rgb_std),
        },
        use=f'model = seamseg.load("{{}}")\nresult = model.predict("street.jpg")  # {result}',
        command="seamseg predict {} photos/ out/",
    )


def _classifier(path: Path, opened: OpenedClassifier, options: ConversionOptions) -> ConvertedModel:
    if options.overrides or options.meta is not None:
        given = "`overrides`" if options.overrides else "`meta`"
        raise InputError(f"{given} has no effect on a classifier")
    stated = (path if path.is_dir() else path.parent) / CLASSES_NAME
    sizes = opened.config.input
    scale = f"shorter side {sizes.scale_val}, " if sizes.scale_val > 0 else ""
    return ConvertedModel(
        kind=CLASSIFICATION,
        task="image-classification",
        main_score="top1",
        metadata=Metadata(0, len(opened.names), opened.names, [], []),
        weights=opened.net.state_dict(),
        licence=options.licence or (str(read_statement(stated).get("licence", "")) if stated.is_file() else ""),
        files={
            CLASSIFIER_CONFIG_NAME: json.dumps(opened.config.to_json(), indent=2) + "\n",
            CLASSIFIER_CLASSES_NAME: json.dumps(opened.names, indent=1) + "\n",
        },
        network={
            "backbone": opened.config.network.arch,
            "input": f"{scale}centre crop {sizes.crop_val} pixels",
            "mean": str(sizes.mean),
            "std": str(sizes.std),
        },
        use='net = seamseg.classifier("{}")  # images N x 3 x H x W, normalised -> logits',
        command="seamseg export {} classifier.onnx",
    )
