"""Where a model is, which of its files holds the weights, whether another library made it, its checksum; no torch."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seamseg.checkpoints.hub import REPO_NAME, SCHEME, fetch
from seamseg.utils.errors import InputError
from seamseg.utils.files import hash_content, is_hidden, join_inside, nearest_path, read_json
from seamseg.utils.limits import CONFIG_BYTES

SNAPSHOT_NAMES = ("model_best.pth.tar", "model_last.pth.tar")
"""Snapshots of a run folder, in order of preference."""

CONFIG_NAME = "config.ini"
METADATA_NAME = "metadata.bin"

WEIGHTS_NAME = "model.safetensors"
WEIGHTS_ENDING = ".safetensors"
CLASSES_NAME = "metadata.json"
"""Classes, kind and licence beside the weights, see :mod:`seamseg.contrib.deploy.model_folder`."""

CLASSIFIER_CONFIG_NAME = "config.json"
CLASSIFIER_CLASSES_NAME = "classes.json"
MODEL_FILES = (WEIGHTS_NAME, CONFIG_NAME, CLASSES_NAME, CLASSIFIER_CONFIG_NAME, CLASSIFIER_CLASSES_NAME)
"""Files of a model without pickles, a classifier's included."""

TRANSFORMERS_CONFIG_NAME = "config.json"
FOREIGN = ("torchvision", "transformers")
"""Other libraries whose networks are opened, see :func:`library_of`."""
TORCHVISION = "torchvision:"
"""Start of the name of a network of torchvision, `torchvision:NAME?weights=FILE`."""

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")
_PROCESSOR_NAME = "preprocessor_config.json"
_PROCESSOR_WITH_TOKENIZER_NAME = "processor_config.json"
_SETTINGS = (
    TRANSFORMERS_CONFIG_NAME,
    _PROCESSOR_NAME,
    _PROCESSOR_WITH_TOKENIZER_NAME,
    "*_panoptic.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""Configuration, classes (of OneFormer) and tokenizer; never code."""
CARD_NAME = "README.md"


def library_of(model: str | Path) -> str:
    """Return whose model this is by its name or file: `exported`, `torchvision` or `transformers`, else `seamseg`.

    Exported networks have one of :data:`EXPORTED_ENDINGS`, also on the hub. Transformers is a folder of
    `save_pretrained`, whose `config.json` names a type of model; our classifiers name none. A damaged one counts as
    of transformers, whose reader says what is wrong.
    """
    if Path(model).suffix.lower() in EXPORTED_ENDINGS:
        return "exported"
    if str(model).startswith(TORCHVISION):
        return "torchvision"
    file = Path(model, TRANSFORMERS_CONFIG_NAME)
    try:
        return "transformers" if os.path.isfile(file) and "model_type" in read_object(file) else "seamseg"
    except InputError:
        return "transformers"


def read_object(file: Path, what: str = "configuration") -> dict[str, Any]:
    """Read a JSON object; raise InputError if it is missing, too large or something else."""
    content = read_json(file, what, CONFIG_BYTES)
    if not isinstance(content, dict):
        raise InputError(f"{file}: not a JSON object")
    return content


def read_processor(folder: Path) -> dict[str, Any]:
    """Read the settings of the image processor of a model of transformers; empty if it has none."""
    if (file := folder / _PROCESSOR_NAME).is_file():
        return read_object(file)
    file = folder / _PROCESSOR_WITH_TOKENIZER_NAME
    found = read_object(file).get("image_processor") if file.is_file() else None
    return found if isinstance(found, dict) else {}


def files_to_download(folder: Path) -> Iterator[Sequence[str]]:
    """Yield patterns of the files to download to the folder of a model of transformers, which holds its `config.json`.

    Pickles follow only if there are no safetensors. Nothing is yielded for other models.
    """
    if library_of(folder) == "transformers":
        yield (*_SETTINGS, CARD_NAME, *_SAFETENSORS)
        if not any(folder.glob("model*.safetensors")):
            yield _PICKLES


def transformers_weights(folder: Path) -> list[Path]:
    """Return the files of the weights of a folder of transformers, safetensors if there are any.

    InputError if there are none, or some that the index lists are missing.
    """
    for single, index, _ in (_SAFETENSORS, _PICKLES):
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            table = read_object(folder / index).get("weight_map")
            values = list(table.values()) if isinstance(table, dict) else []
            if not values or not all(re.search(r"\.(safetensors|bin)$", str(name)) for name in values):
                raise InputError(f"{folder / index}: lists no files of weights beside it")
            found = [join_inside(folder, name) for name in sorted(set(values))]
            if missing := next((file for file in found if not file.is_file()), None):
                raise InputError(f"{folder}: {missing.name} is missing, which {index} lists: copy it again")
            return found
    raise InputError(f"{folder}: holds no weights: neither {_SAFETENSORS[0]} nor {_PICKLES[0]}")


def torchvision_name(model: str | Path) -> tuple[str, Path | None]:
    """Return the name of a network of torchvision, and the file of its weights if the model names one."""
    match = re.fullmatch(re.escape(TORCHVISION) + r"(\w+)(?:\?weights=(.+))?", str(model))
    if match is None:
        raise InputError(f"{model}: malformed: write torchvision:NAME or torchvision:NAME?weights=FILE")
    return match[1], None if match[2] is None else Path(match[2])


VISTAS_MD5 = "7046e54e54e9dcc38060b150e97f4a5a"
"""MD5 of the published zip according to the README of the original project; not verified."""

PACKAGE_ENDING = ".pt2"
EXPORTED_ENDINGS = (".onnx", PACKAGE_ENDING)


def local_model(model: str | Path) -> Path:
    """Return the path of a model that exists; `hf://user/repo` is downloaded, `torchvision:NAME` returned as it is."""
    name = str(model)
    path = fetch(name, MODEL_FILES, files_to_download) if name.startswith(SCHEME) else Path(model)
    if name.startswith(TORCHVISION) or os.path.exists(path):  # no error for a name that no file can have
        return path
    if found := re.fullmatch(r"(?:https?://(?:www\.)?huggingface\.co/|hf:/?)([^/]+/[^/]+)/?", name):
        raise InputError(f"{model}: no such model; did you mean hf://{found[1]}?")
    if meant := nearest_path(path):
        raise InputError(f"{path}: no such model{meant}")
    if re.fullmatch(REPO_NAME, name) and not path.suffix and not os.path.exists(path.parent):
        raise InputError(f"{model}: no such model; did you mean hf://{model}, on the Hugging Face Hub?")
    text = (
        f"{path}: no such model; MODEL is a published .zip (snapshot, config.ini and metadata.bin inside), a run "
        "folder of `seamseg train`, a folder of `seamseg convert-model`, a snapshot (.pth.tar, .tar), an exported "
        "network (.onnx, .pt2), a folder of transformers, torchvision:NAME, or hf://user/repo"
    )
    if "vistas" in path.name.lower() and path.suffix.lower() == ".zip":
        text += (
            "; the model for Mapillary Vistas (ResNet-50, PQ 37.99, CC BY-NC-SA 4.0) is linked in the README of the "
            "original project, github.com/mapillary/seamseg, under Trained models, which gives its md5 as "
            f"{VISTAS_MD5}; nothing is downloaded automatically"
        )
    raise InputError(text)


def digest(path: str | Path) -> str:
    """Compute the SHA-256 of a model: of its zip or snapshot, or of the preferred weights of a folder.

    For a model of another library, of its settings (configuration, processor, tokenizer) and weights; for a network of
    torchvision, of its name and, if it names one, the file of its weights.
    """
    path, state = local_model(path), hashlib.sha256()
    library = library_of(path)
    if library == "torchvision":
        name, weights = torchvision_name(path)
        state.update(name.encode())
        files = [] if weights is None else [weights]
    elif library == "transformers":
        settings = {file for pattern in _SETTINGS for file in path.glob(pattern)}
        files = [*sorted(settings), *transformers_weights(path)]
    else:
        files = [snapshot_in(path)]
    for file in files:
        hash_content(file, state)
    return state.hexdigest()


def snapshot_in(folder: Path) -> Path:
    """Return the weights of a converted folder, or the preferred snapshot of a run; InputError if there are none.

    Another path is returned as it is.
    """
    if not folder.is_dir():
        return folder
    # in this order: the cache of a hub keeps all files of a repository that were ever downloaded in one folder
    found = next((folder / name for name in (WEIGHTS_NAME, *SNAPSHOT_NAMES) if (folder / name).is_file()), None)
    if found is None:
        others = [p for end in ("*.tar", "*.pth") for p in sorted(folder.glob(end)) if not is_hidden(p.name)]
        if len(others) != 1:
            known = " nor ".join((*SNAPSHOT_NAMES, WEIGHTS_NAME))
            from seamseg.maps.images import PHOTO_ENDINGS  # Pillow, which a start does without

            names = [name.lower() for name in os.listdir(folder)]
            images = "lst" in names or any(name.endswith(PHOTO_ENDINGS) for name in names)
            swapped = "; it holds images: the model comes before them" if images else ""
            raise InputError(f"{folder}: not a run folder: it holds neither {known}{swapped}")
        found = others[0]
    return found


def weights_at(path: str | Path) -> Path:
    """Return the file of weights: a file itself, existing or not, or the preferred one of a folder or `hf://...`."""
    return snapshot_in(local_model(path) if str(path).startswith(SCHEME) else Path(path))
