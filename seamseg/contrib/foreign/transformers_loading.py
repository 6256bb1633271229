"""Build a network of transformers from its folder: configuration, weights, tokens of its task; never remote code."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.checkpoints.model_path import TRANSFORMERS_CONFIG_NAME, read_object, transformers_weights
from seamseg.checkpoints.snapshot import load_tensors, read_weights
from seamseg.contrib.foreign.families import Family
from seamseg.utils.errors import InputError, SeamsegError, one_line
from seamseg.utils.output import without_message

_OF_LOSSES = "criterion."
"""Prefix of the tensors that only the training uses."""


def load_network(folder: Path, family: Family) -> nn.Module:
    """Build a network and load its weights, on the CPU in float32."""
    with quiet() as transformers:
        model_class = getattr(transformers, family.model_class)
        content = read_object(folder / TRANSFORMERS_CONFIG_NAME)
        config = built_by(f"{folder / TRANSFORMERS_CONFIG_NAME}", lambda: model_class.config_class.from_dict(content))
        make_plain(config)
        state = _read_state(folder)
        net, report = built_by(
            str(folder),
            lambda: model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # its own error shows none of them
                output_loading_info=True,
            ),
        )
    if report["mismatched_keys"]:
        key, held, wanted = min((key, tuple(held), tuple(wanted)) for key, held, wanted in report["mismatched_keys"])
        raise InputError(
            f"{folder}: {key} of the weights has the shape {held}, by the configuration it is {wanted}: is it the "
            "configuration of another network?"
        )
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(_OF_LOSSES))
    if missing:
        raise InputError(
            f"{folder}: the weights lack {len(missing)} tensors of a {family.model_class}, such as {missing[0]}: they "
            "are those of another network, or incomplete"
        )
    built: nn.Module = net.eval()
    return built


def task_tokens(folder: Path, task: str, length: int) -> Tensor:
    """Return the token ids of a task, `1 x length`, zero after the text."""
    with quiet() as transformers:
        if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            raise InputError(
                f"{folder}: holds no tokenizer (tokenizer.json, or vocab.json and merges.txt), which its network needs "
                "for the text of its task"
            )
        tokenizer = built_by(
            f"{folder}: tokenizer",
            lambda: transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            ),
        )
        ids = tokenizer(task, truncation=True, max_length=length)["input_ids"]
    return torch.tensor([ids + [0] * (length - len(ids))])


def _read_state(folder: Path) -> dict[str, Tensor]:
    """Read the weights, pickles through `torch.load(weights_only=True)`."""
    state: dict[str, Tensor] = {}
    for file in transformers_weights(folder):
        if file.suffix == ".safetensors":
            state.update(read_weights(file, str(file)))
            continue
        state.update(load_tensors(file, str(file)))
    return state


def make_plain(config: Any) -> None:
    """Change what would need a download, or other inputs, at inference."""
    parts: list[Any] = [config, getattr(config, "backbone_config", None)]
    for part in parts:
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
    if getattr(config, "is_training", False):
        config.is_training = False


def built_by(name: str, make: Any) -> Any:
    """Return what a function of transformers returns; InputError, about `name`, for any of its errors."""
    try:
        return make()
    except ImportError as error:
        package = "timm" if "timm" in str(error) else "transformers"
        raise InputError(
            f"{name}: needs a package that is not installed ({one_line(error)[:160]}): pip install 'seamseg[{package}]'"
        ) from None
    except (SeamsegError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the library raises nearly any for a wrong configuration or weights
        reason = f"unknown {error}" if isinstance(error, KeyError) else one_line(error)[:300]
        if _is_of_the_hub(error):
            reason = "it names a backbone that is not in the folder, which is not downloaded"
        raise InputError(f"{name}: transformers refuses it: {reason}") from error


def _is_of_the_hub(error: BaseException | None) -> bool:
    """Return whether the cause of an error is a file that is missing locally and would be downloaded."""
    if error is None:
        return False
    own = type(error).__name__ in ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
    return own or _is_of_the_hub(error.__cause__ or error.__context__)


@contextmanager
def quiet() -> Iterator[Any]:
    """Yield the module transformers, without its messages and progress bars: our own errors replace them.

    It is offline: a configuration may name a backbone that it would look for on the hub.
    """
    with without_message("torch.utils._pytree", "is an Enum subclass"):  # of torchao, which it imports
        try:
            transformers = importlib.import_module("transformers")
            hub: Any = importlib.import_module("huggingface_hub.constants")
        except (ImportError, RuntimeError) as error:
            raise InputError(f"transformers cannot be imported ({one_line(error)[:200]})") from None
        logging = transformers.logging
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()
        offline, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
        try:
            yield transformers
        finally:
            hub.HF_HUB_OFFLINE = offline
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
