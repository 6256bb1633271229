"""A panoptic network of transformers for a predictor; its maps follow its paper, not its processor.

It is built from its folder: configuration, weights, tokens of its task; never remote code.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from seamseg.checkpoints.model_path import (
    CARD_NAME,
    TRANSFORMERS_CONFIG_NAME,
    read_object,
    read_processor,
    transformers_weights,
)
from seamseg.checkpoints.snapshot import load_tensors, read_weights
from seamseg.config import Config
from seamseg.contrib.foreign.class_lists import NetworkClasses, identify
from seamseg.contrib.foreign.families import (
    DEFAULT_SIZE,
    FAMILIES,
    OVERLAP_THRESHOLD,
    SIZES,
    Family,
    ForeignNetwork,
    neutral_config,
)
from seamseg.contrib.foreign.queries import prediction_of_queries
from seamseg.data.input_size import InputSize
from seamseg.inference.options import InferenceOptions
from seamseg.maps.predictions import ArrayPrediction
from seamseg.models.folding import choose_precision
from seamseg.results import Panoptic
from seamseg.structures import Normalise
from seamseg.utils.distributed import choose_device, is_main_process
from seamseg.utils.errors import InputError, SeamsegError, did_you_mean, one_line
from seamseg.utils.output import echo, quiet_logs

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NMS_THRESHOLD = 0.5
"""IoU of detections in tiles: duplicates at tile borders overlap more; boxes of one class rarely overlap this much."""
_OTHER_TASK = re.compile(r"[-_](semantic|instance)(?![^-_])")
_BILINEAR = Image.Resampling.BILINEAR


class TransformersNetwork(ForeignNetwork):
    """A network of transformers; `side` is that of its square input, `tokens` are those of its task."""

    kind, result_type = "panoptic", Panoptic
    nms_threshold = _NMS_THRESHOLD

    def __init__(
        self,
        net: nn.Module,
        family: Family,
        classes: NetworkClasses,
        normalise: Normalise,
        device: torch.device,
        dtype: torch.dtype,
        side: int | None = None,
        tokens: Tensor | None = None,
    ) -> None:
        super().__init__(net, normalise, device, dtype)
        self.family = family
        self.classes = classes
        self.side = side
        self._inputs = {} if tokens is None else {"task_inputs": tokens.to(device)}

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """Return the outputs for images `H x W x 3` uint8; those of several sizes one by one, none is padded."""
        if len({image.shape for image in images}) > 1:
            return [self._run([image])[0] for image in images]
        return self._run(images)

    def _run(self, images: Sequence[np.ndarray]) -> list[ArrayPrediction]:
        size = int(images[0].shape[0]), int(images[0].shape[1])
        with self.computing():
            batch, padded_size = self._batch(images)
            outputs = self.net(pixel_values=batch, **{k: v.expand(len(images), -1) for k, v in self._inputs.items()})
        scores, masks = (outputs[name].float() for name in (self.family.class_logits, self.family.mask_logits))
        for values, name in ((scores, self.family.class_logits), (masks, self.family.mask_logits)):
            if not torch.isfinite(values).all():
                advice = "are its weights damaged?" if self.precision == "float32" else "use `precision=fp32`"
                raise SeamsegError(f"the network's {name} are not finite: {advice}")
        scores = self.classes.used_logits(scores)
        classes, num_stuff = self.classes.used, self.classes.metadata.num_stuff
        return [
            prediction_of_queries(s.numpy(), m.numpy(), size, padded_size, classes, num_stuff)
            for s, m in zip(scores.cpu(), masks.cpu())
        ]

    def export_size(self, name: str, size: tuple[int, int] | None, usual: tuple[int, int]) -> tuple[int, int]:
        """Return `(height, width)` of the input of an export; InputError if there is none, or not this one."""
        if self.family.export_problem:
            raise InputError(f"{name}: cannot be exported: {self.family.export_problem}")
        if self.side is not None:
            if size not in (None, (self.side, self.side)):
                raise InputError(f"`size={_shown(size)}`: the input of {name} is {self.side} x {self.side}")
            return self.side, self.side
        chosen, multiple = size or usual, self.family.multiple
        if any(value % multiple for value in chosen):
            raise InputError(f"`size={_shown(chosen)}`: height and width must be multiples of {multiple} for {name}")
        return chosen

    def traced(self, name: str) -> QueryNet:
        """Return the network, named `name` in errors, as it is traced for an export; it must be on the CPU."""
        return QueryNet(self, name)

    def _batch(self, images: Sequence[np.ndarray]) -> tuple[Tensor, tuple[int, int]]:
        """Return the input for images of one size, and its `(height, width)` in pixels of the images."""
        height, width = images[0].shape[:2]
        if self.side is None:
            multiple = self.family.multiple
            padded = input_size = -(-height // multiple) * multiple, -(-width // multiple) * multiple
        else:
            scale = self.side / max(height, width, self.side)
            if scale < 1:  # a tile, or a view of all of a large image
                height, width = max(round(height * scale), 1), max(round(width * scale), 1)
                images = [np.asarray(Image.fromarray(i).resize((width, height), _BILINEAR)) for i in images]
            input_size, padded = (self.side, self.side), (round(self.side / scale), round(self.side / scale))
        missing = (0, input_size[1] - width, 0, input_size[0] - height)
        valid = functional.pad(torch.ones((height, width), dtype=torch.bool, device=self.device), missing)
        stacked = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2)
        pixels = functional.pad(stacked, missing)
        return padded_input(pixels, valid, self.normalise, self.family.square), padded


def padded_input(images: Tensor, valid: Tensor, normalise: Callable[[Tensor], Tensor], square: bool) -> Tensor:
    """Return the input: where `valid` is False black if the network is `square`, else 0 after the normalisation."""
    if square:
        return normalise(torch.where(valid, images, 0))
    return torch.where(valid, normalise(images), 0.0)


class QueryNet(nn.Module):
    """A network of transformers on the CPU, in float32, changed so that it can be traced."""

    def __init__(self, network: TransformersNetwork, name: str) -> None:
        super().__init__()
        net, self.family = network.net, network.family
        self._classes = network.classes
        self.query_classes = tuple(network.classes.used.tolist())
        net.set_attn_implementation("eager")  # type: ignore[operator]
        if self.family.mask_annealing_buffer:
            # the tracer follows no branch that depends on a tensor
            buffer = self.family.mask_annealing_buffer
            probabilities = net.get_buffer(buffer)
            if torch.any(probabilities != 0):
                raise InputError(
                    f"{name}: cannot be exported: {buffer} is not 0, the masked attention of its training is still on"
                )
            delattr(net, buffer)
            setattr(net, buffer, [0.0] * len(probabilities))
        self.net = net

    def forward(self, image: Tensor, valid: Tensor, normalise: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Map an image `1 x 3 x H x W` uint8, with its valid pixels, bool `H x W`, to class and mask logits."""
        pixels = padded_input(image, valid, normalise, self.family.square)
        mask = {"pixel_mask": valid.long()[None]} if self.family.pixel_mask else {}
        outputs = self.net(pixel_values=pixels, **mask)
        scores = self._classes.used_logits(outputs[self.family.class_logits])
        return scores[0], outputs[self.family.mask_logits][0]


class TransformersModel:
    """A folder of transformers that is opened; see :class:`seamseg.inference.predictor.OpenedModel`."""

    kind = "panoptic"
    reference: InputSize | None = None

    def __init__(
        self, model: str | Path, device: str | torch.device, meta: str | Path | None, options: InferenceOptions
    ) -> None:
        self._folder = Path(model)
        self.name = str(model)
        self._device = choose_device(device)
        self._dtype = choose_precision(options.precision, self._device)
        content = read_object(self._folder / TRANSFORMERS_CONFIG_NAME)
        self._processor = read_processor(self._folder)
        self.family = family_of(content, self._processor, self.name)
        path = self._folder.absolute()
        name = path.parents[1].name if path.parent.name == "snapshots" else path.name  # of the hub's cache
        found = None if "panoptic" in name else _OTHER_TASK.search(name)
        # its configuration does not state for which task it was trained
        if found and is_main_process():
            task = f"is for {found[1]} segmentation by the name {name!r:.80}"
            echo(f"seamseg: warning: {path}: {task}: its panoptic maps will be poor", file=sys.stderr)
        self.side = square_side(content, self.name) if self.family.square else None
        self._task_length = content.get("task_seq_len", 77)
        self._classes = identify(column_names(content, self.name), self.name, meta)
        self.metadata = self._classes.metadata
        self.config = self._config(options)
        card = self._folder / CARD_NAME
        text = ""
        if card.is_file():
            with open(card, "rb") as file:
                text = file.read(1 << 16).decode(errors="replace")
        stated = re.match(r"---\n(?:(?!---).*\n)*?license:(.*)\n", text)
        self.licence = stated[1].strip(" '\"") if stated else ""

    def _config(self, options: InferenceOptions) -> Config:
        data_set = self._classes.data_set
        shortest, longest = SIZES.get(data_set, DEFAULT_SIZE)
        size = self._processor.get("size")
        if not data_set and isinstance(size, Mapping):
            # never a fixed `384 x 384`
            sides: tuple[Any, Any] = (size.get("shortest_edge"), size.get("longest_edge"))
            if all(isinstance(side, int) and side > 0 for side in sides):
                shortest, longest = sides
        keys: dict[str, object] = {
            "general.score_threshold": self.family.score_thresholds.get(data_set, self.family.score_threshold),
            "general.overlap_threshold": OVERLAP_THRESHOLD,
            "dataloader.shortest_size": shortest,
            "dataloader.longest_max_size": longest,
            "dataloader.longest_size": "" if self.side is None else self.side,
        }
        for name, default in (("mean", _MEAN), ("std", _STD)):
            keys[f"dataloader.rgb_{name}"] = repr(self._processor.get(f"image_{name}") or default)
        return neutral_config(self.kind, keys, self.name, options)

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input, by default as its authors chose it."""
        return options.input_size_of_authors(self.config)

    def build(self, options: InferenceOptions) -> TransformersNetwork:
        """Build the network and load its weights."""
        tokens = None
        if self.family.task:
            tokens = task_tokens(self._folder, self.family.task, self._task_length)
        net = load_network(self._folder, self.family)
        loading = self.config.dataloader
        normalise = Normalise(loading.rgb_mean, loading.rgb_std, self._device)
        return TransformersNetwork(
            net, self.family, self._classes, normalise, self._device, self._dtype, self.side, tokens
        )


_OF_LOSSES = "criterion."
"""Prefix of the tensors that only the training uses."""


def load_network(folder: Path, family: Family) -> nn.Module:
    """Build a network and load its weights, on the CPU in float32."""
    with quiet() as transformers:
        model_class = getattr(transformers, family.model_class)
        content = read_object(folder / TRANSFORMERS_CONFIG_NAME)
        config = built_by(f"{folder / TRANSFORMERS_CONFIG_NAME}", lambda: model_class.config_class.from_dict(content))
        make_plain(config)
        state: dict[str, Tensor] = {}
        for file in transformers_weights(folder):
            # pickles through `torch.load(weights_only=True)`
            read = read_weights if file.suffix == ".safetensors" else load_tensors
            state.update(read(file, str(file)))
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
    """Yield the module transformers, offline, without its messages and progress bars: our own errors replace them."""
    with quiet_logs("torch.utils._pytree"):  # it imports torchao, which uses a subclass of Enum
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


def family_of(content: Mapping[str, Any], processor: Mapping[str, Any], name: str) -> Family:
    """Return the family of a network; InputError if it is none, or does not make panoptic maps."""
    if "auto_map" in content or "auto_map" in processor:
        raise InputError(f"{name}: comes with code of its own (auto_map), which is never run: use another model")
    stated_type = str(content["model_type"])[:40]
    family = FAMILIES.get(stated_type)
    if family is None:
        known = f"supported types are {', '.join(FAMILIES)}{did_you_mean(stated_type, FAMILIES)}"
        raise InputError(f"{name}: a network of type {stated_type} makes no panoptic maps; {known}")
    stated = content.get("architectures")
    if isinstance(stated, list) and stated and family.model_class not in stated:
        raise InputError(f"{name}: is a {stated[0]!s:.80}, which makes no panoptic maps; needed: {family.model_class}")
    if family.square and processor.get("do_split_image"):
        raise InputError(f"{name}: was trained for semantic segmentation (do_split_image), it makes no panoptic maps")
    return family


def column_names(content: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of the classes, one a column."""
    labels = content.get("id2label")
    try:
        if not labels:
            return [f"LABEL_{column}" for column in range(min(content.get("num_labels", 2), 100_000))]
        return [str(labels[str(column)]) for column in range(len(labels))]
    except (TypeError, LookupError):
        raise InputError(f"{name}: its configuration has no valid id2label: the names of classes 0, 1, ...") from None


def square_side(content: Mapping[str, Any], name: str) -> int:
    """Return the side of the input of a network for squares."""
    value = content.get("image_size", 640)
    sides = value if isinstance(value, list) else [value]
    if len(set(map(str, sides))) != 1 or not isinstance(sides[0], int):
        raise InputError(f"{name}: image_size is {value!s:.40}, not the side of a square")
    return sides[0]


def _shown(size: Sequence[int]) -> str:
    return "x".join(map(str, size))
