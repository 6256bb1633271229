"""Where a model is, which of its files holds the weights, whether it is an exported network, its checksum; no torch."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from seamseg.checkpoints.foreign import (
    files_of_identity,
    files_to_download,
    is_foreign,
    is_torchvision,
    torchvision_name,
)
from seamseg.checkpoints.hub import fetch, is_hub_uri, is_repo_name
from seamseg.checkpoints.names import MODEL_FILES, SNAPSHOT_NAMES, WEIGHTS_NAME
from seamseg.utils.errors import InputError
from seamseg.utils.files import hash_content, is_hidden, nearest_path

VISTAS_MD5 = "7046e54e54e9dcc38060b150e97f4a5a"
"""MD5 of the published zip according to the README of the original project; not verified."""

PACKAGE_ENDING = ".pt2"
EXPORTED_ENDINGS = (".onnx", PACKAGE_ENDING)


def is_exported(model: str | Path) -> bool:
    """Return whether a model is an exported network, by the ending of its name."""
    return Path(model).suffix.lower() in EXPORTED_ENDINGS


def local_model(model: str | Path) -> Path:
    """Return the path of a model that exists; `hf://user/repo` is downloaded, `torchvision:NAME` returned as it is."""
    path = fetch(str(model), MODEL_FILES, files_to_download) if is_hub_uri(model) else Path(model)
    if is_torchvision(model) or os.path.exists(path):  # no error for a name that no file can have
        return path
    if found := re.fullmatch(r"(?:https?://(?:www\.)?huggingface\.co/|hf:/?)([^/]+/[^/]+)/?", str(model)):
        raise InputError(f"{model}: no such model; did you mean hf://{found[1]}?")
    if meant := nearest_path(path):
        raise InputError(f"{path}: no such model{meant}")
    if is_repo_name(str(model)) and not path.suffix and not os.path.exists(path.parent):
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
    path = local_model(path)
    state = hashlib.sha256()
    if is_foreign(path):
        files = files_of_identity(path)
        state.update(b"" if path.is_dir() else torchvision_name(path)[0].encode())
    else:
        files = [snapshot_in(path) if path.is_dir() else path]
    for file in files:
        hash_content(file, state)
    return state.hexdigest()


def snapshot_in(folder: Path) -> Path:
    """Return the weights of a converted folder, or the preferred snapshot of a run; InputError if there are none."""
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
    found = local_model(path) if is_hub_uri(path) else Path(path)
    return snapshot_in(found) if found.is_dir() else found
