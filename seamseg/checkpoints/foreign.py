"""Models of other libraries: a folder of transformers, and the detectors of torchvision; no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seamseg.utils.errors import InputError
from seamseg.utils.files import join_inside, read_json
from seamseg.utils.limits import CONFIG_BYTES

TRANSFORMERS_CONFIG_NAME = "config.json"
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


def is_torchvision(model: object) -> bool:
    """Return whether a model is named by `torchvision:...` instead of a path."""
    return str(model).startswith(TORCHVISION)


def is_foreign(model: str | Path) -> bool:
    """Return whether a model is one of torchvision or a folder of transformers."""
    return is_torchvision(model) or is_transformers(Path(model))


def is_transformers(path: Path) -> bool:
    """Return whether a path is a folder of `save_pretrained`: its `config.json` names a type of model.

    Our classifiers name none. A damaged one counts, for a fitting error.
    """
    file = path / TRANSFORMERS_CONFIG_NAME
    try:
        return os.path.isfile(file) and "model_type" in read_object(file)
    except InputError:
        return True


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
    if is_transformers(folder):
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
            return _parts(folder, folder / index)
    raise InputError(f"{folder}: holds no weights: neither {_SAFETENSORS[0]} nor {_PICKLES[0]}")


def _parts(folder: Path, index: Path) -> list[Path]:
    table = read_object(index).get("weight_map")
    names = set(table.values()) if isinstance(table, dict) and all(isinstance(n, str) for n in table.values()) else ()
    if not names:
        raise InputError(f"{index}: lists no files of weights")
    found = []
    for name in sorted(names):
        path = join_inside(folder, name)
        if not re.search(r"\.(safetensors|bin)$", name):
            raise InputError(f"{index}: {name!r:.80} is not a file of weights beside it")
        if not path.is_file():
            raise InputError(f"{folder}: {name} is missing, which {index.name} lists: copy it again")
        found.append(path)
    return found


def torchvision_name(model: str | Path) -> tuple[str, Path | None]:
    """Return the name of a network of torchvision, and the file of its weights if the model names one."""
    match = re.fullmatch(re.escape(TORCHVISION) + r"(\w+)(?:\?weights=(.+))?", str(model))
    if match is None:
        raise InputError(f"{model}: malformed: write torchvision:NAME or torchvision:NAME?weights=FILE")
    return match[1], None if match[2] is None else Path(match[2])


def files_of_identity(model: Path) -> list[Path]:
    """Return the files whose content decides what a model of another library computes."""
    if is_torchvision(model):
        _, file = torchvision_name(model)
        return [] if file is None else [file]
    settings = {file for pattern in _SETTINGS for file in model.glob(pattern)}
    return [*sorted(settings), *transformers_weights(model)]
