"""Build a network of transformers from its folder: configuration, weights, tokens of its task; never remote code."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.checkpoints.foreign import TRANSFORMERS_CONFIG_NAME, read_json, transformers_weights
from seamseg.checkpoints.snapshot import load_tensors
from seamseg.checkpoints.weights_file import read_weights
from seamseg.inference.foreign.families import Family
from seamseg.utils.errors import InputError, near_names, one_line
from seamseg.utils.launcher import is_main_process
from seamseg.utils.output import echo, without_message

_OF_LOSSES = ("criterion.",)
"""Tensors that only the training uses."""
_GENERAL_KEYS = ("architectures", "dtype", "id2label", "label2id", "model_type", "num_labels", "torch_dtype")
_FLOAT_BYTES = 4
_SPARE_PARAMETERS = 100_000_000
"""Parameters that a configuration may need beyond twice those of its weights."""
_BUFFER_COPIES = 4
"""Memory of the computation of a buffer, relative to its size."""
_OF_LAYERS = re.compile(r"(_layers|depths|_blocks)$")
_SIMILAR = 0.85
_MOST_KEYS = 1000
"""Keys of a configuration that are searched for misspelt ones: the longest has some hundred."""
"""Similarity from which an unknown key is a misspelt one: keys of earlier versions are unknown, too."""


def load_network(folder: Path, family: Family) -> nn.Module:
    """Build a network and load its weights, on the CPU in float32.

    Raises
    ------
    InputError
        if the configuration is invalid, or the weights are missing, damaged, incomplete or of another network
    """
    with quiet() as transformers:
        model_class = getattr(transformers, family.model_class)
        content = read_json(folder / TRANSFORMERS_CONFIG_NAME)
        config = built_by(f"{folder / TRANSFORMERS_CONFIG_NAME}", lambda: model_class.config_class.from_dict(content))
        for key, meant in _misspelt(content, config):
            if is_main_process():
                where = f"seamseg: warning: {folder / TRANSFORMERS_CONFIG_NAME}"
                echo(f"{where}: unknown key {key!r}, which has no effect: is it {meant!r}?", file=sys.stderr)
        make_plain(config)
        state = _read_state(folder)
        check_layers(content, len(state), str(folder))
        empty = built_by(str(folder), lambda: on_meta(model_class, config))
        _check_size(empty, state, str(folder))
        shapes = {key: values.shape for key, values in empty.state_dict().items()}
        _check_shapes([(key, v.shape, shapes[key]) for key, v in state.items() if key in shapes], str(folder))
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
    _check_shapes(report["mismatched_keys"], str(folder))  # of tensors that the library renames, too
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(_OF_LOSSES))
    if missing:
        raise InputError(
            f"{folder}: the weights lack {len(missing)} tensors of a {family.model_class}, such as {missing[0]}: they "
            "are those of another network, or incomplete"
        )
    built: nn.Module = net.eval()
    return built


def task_tokens(folder: Path, task: str, length: int) -> Tensor:
    """Return the token ids of a task, `1 x length`, zero after the text.

    Raises
    ------
    InputError
        if the tokenizer is missing or damaged
    """
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
    """Read the weights; pickles through `torch.load(weights_only=True)`, after a check of their sizes."""
    state: dict[str, Tensor] = {}
    for file in transformers_weights(folder):
        if file.suffix == ".safetensors":
            state.update(read_weights(file, str(file)))
            continue
        content = load_tensors(file, str(file))
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise InputError(f"{file}: not a state dict of transformers")
        state.update(content)
    return state


def on_meta(model_class: Any, config: Any) -> nn.Module:
    """Build a network without memory for its weights."""
    with torch.device("meta"):
        net: nn.Module = model_class(config)
    return net


def _check_size(net: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Raise InputError, before memory is taken, if the configuration makes the network far larger than its weights.

    Buffers count, too: those of positions grow with the fourth power of a window, and need not be in the weights.
    """
    buffers = _BUFFER_COPIES * sum(values.nbytes for values in net.buffers())
    wanted = buffers + sum(values.nbytes for values in net.parameters())
    held = sum(values.numel() for values in state.values())
    if wanted > _FLOAT_BYTES * (2 * held + _SPARE_PARAMETERS):
        raise InputError(
            f"{name}: its configuration needs up to {wanted / 1e6:.0f} MB, its weights have {held} numbers: is it the "
            "configuration of another network?"
        )


def _check_shapes(tensors: Iterable[tuple[str, Sequence[int], Sequence[int]]], name: str) -> None:
    """Raise InputError if a shape of the weights is not that of the network; `tensors` are `(name, held, wanted)`."""
    wrong = [(key, tuple(held), tuple(wanted)) for key, held, wanted in tensors if tuple(held) != tuple(wanted)]
    if wrong:
        key, held, wanted = min(wrong)
        raise InputError(
            f"{name}: {key} of the weights has the shape {held}, by the configuration it is {wanted}: is it the "
            "configuration of another network?"
        )


def check_layers(content: Mapping[str, Any], tensors: int, name: str) -> None:
    """Raise InputError, before any is built, if a network has more layers than its weights have tensors."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            check_layers(value, tensors, name)
        elif _OF_LAYERS.search(key):
            counts = [count for count in (value if isinstance(value, list) else [value]) if isinstance(count, int)]
            if sum(counts) > tensors:
                raise InputError(
                    f"{name}: {key} of its configuration is {value!s:.40}, the weights have {tensors} tensors: is it "
                    "the configuration of another network?"
                )


def make_plain(config: Any) -> None:
    """Change what would need a download, or other inputs, at inference."""
    parts: list[Any] = [config, getattr(config, "backbone_config", None)]
    for part in parts:
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
    if getattr(config, "is_training", False):
        config.is_training = False


def _misspelt(content: Mapping[str, Any], config: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a configuration that are unknown and similar to a known one, with that one."""
    names = [field.name for field in fields(type(config))] if is_dataclass(type(config)) else []
    known = [*names, *getattr(type(config), "attribute_map", {}), *_GENERAL_KEYS]
    for key, value in itertools.islice(content.items(), _MOST_KEYS):
        if key not in known and not hasattr(type(config), key) and (meant := near_names(key, known, 1, _SIMILAR)):
            yield key, meant[0]
        part = getattr(config, key, None)
        if isinstance(value, Mapping) and hasattr(part, "model_type"):
            yield from _misspelt(value, part)


def built_by(name: str, make: Any) -> Any:
    """Return what a function of transformers returns; InputError, about `name`, for any of its errors."""
    try:
        return make()
    except ImportError as error:
        package = "timm" if "timm" in str(error) else "transformers"
        raise InputError(
            f"{name}: needs a package that is not installed ({one_line(error)[:160]}): pip install 'seamseg[{package}]'"
        ) from None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the library raises nearly any for a wrong configuration or weights
        reason = f"unknown {error}" if isinstance(error, KeyError) else one_line(error)[:300]
        if _is_of_the_hub(error):
            reason = "it names a backbone that is not in the folder, which is not downloaded"
        raise InputError(f"{name}: transformers refuses it: {reason}") from error


def _is_of_the_hub(error: BaseException | None) -> bool:
    """Return whether an error, or a cause of it, is that of a file that is neither local nor downloaded."""
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
