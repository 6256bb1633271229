"""timm networks as backbones: maps of strides 4, 8, 16 and 32 for images of any size.

Networks with stages give their maps. A plain vision transformer has maps of one stride; a simple feature pyramid makes
the levels from them (Li et al., arXiv 2203.16527). timm is imported when such a network is built.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.components import BodyContext
from seamseg.config.kinds import TIMM
from seamseg.contrib.recipes.timm import STRIDES, TimmKeys
from seamseg.models.backbones.base import Backbone
from seamseg.ops.abn import apply_norm
from seamseg.ops.abn_steps import Norm
from seamseg.ops.norm import synchronised_over
from seamseg.utils.errors import InputError, did_you_mean, one_line

_STRIDES = tuple(STRIDES.values())

_FREE_SIZE = {"dynamic_img_size": True, "strict_img_size": False, "always_partition": True}
"""Arguments of some networks, with which they take images of any size."""

_RESERVED = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay"), "[body] weights = timm"),
    **dict.fromkeys(("checkpoint_path", "cache_dir"), "[body] weights"),
    **dict.fromkeys(("features_only", "out_indices", "feature_cls"), "[fpn] inputs"),
    "drop_path_rate": "[body timm] drop_path",
    **dict.fromkeys(("num_classes", "in_chans", "scriptable", "exportable", "no_jit"), ""),
}
"""Arguments of `timm.create_model` that are keys of the configuration instead, or that cannot be changed."""


def create_model(name: str, arguments: Mapping[str, Any], meta: bool = False, pretrained: bool = False) -> Any:
    """Return a timm network without its classifier; `meta` allocates no memory, `pretrained` may download weights."""
    try:
        import timm
    except ImportError as error:
        raise InputError(f"[body] body = {TIMM}{name}: needs timm ({error}): pip install 'seamseg[timm]'") from None
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        meant = did_you_mean(architecture, timm.list_models())
        raise InputError(f"[body] body = {TIMM}{name}: timm {timm.__version__} has no such network{meant}")
    with torch.device("meta") if meta else nullcontext():
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)


class TimmBackbone(Backbone):
    """A timm network with maps of strides 4, 8, 16 and 32; images are padded to multiples, the maps cropped again."""

    initialised = True

    def __init__(self, keys: TimmKeys, context: BodyContext) -> None:
        keep_outputs, checkpoint = context.keep_outputs, context.checkpoint
        super().__init__(keep_outputs=keep_outputs, checkpoint=checkpoint)
        self.name = context.name
        name = self.name.removeprefix(TIMM)
        self.arguments, shape = _arguments(name, context.params, keys.drop_path)
        levels = _Levels.of(shape, self.name, all_strides=keep_outputs)
        self._levels = levels
        indices = levels.indices if keep_outputs else levels.indices[-1:]
        # counted again after the layers behind the last map are removed
        self._indices = shape.prune_intermediate_layers(indices, prune_norm=not levels.is_plain)
        used = levels.maps[-len(indices) :]
        self.multiple = _multiple_of(shape, self._indices, used, levels.is_plain, self.name)

        if checkpoint:
            _checkpoint_blocks(shape, self.name)
        self.model = create_model(name, self.arguments)
        self.model.prune_intermediate_layers(indices, prune_norm=not levels.is_plain)
        stride, width = used[-1]
        self.pyramid = SimplePyramid(width, stride) if levels.is_plain and keep_outputs else None
        made = used if self.pyramid is None else list(zip(_STRIDES, self.pyramid.out_channels))
        for i, (stride, width) in enumerate(made, start=self.num_modules + 1 - len(made)):
            self.out_channels[f"mod{i}"], self.out_strides[f"mod{i}"] = width, stride
        if checkpoint or context.synchronise:
            from timm.layers import BatchNormAct2d

            for parent in list(self.model.modules()):
                for child_name, child in list(parent.named_children()):
                    if type(child) in (nn.BatchNorm2d, BatchNormAct2d):
                        setattr(parent, child_name, _BatchNorm(child, context.synchronise))
        if checkpoint:
            _checkpoint_blocks(self.model, self.name)

    @property
    def num_modules(self) -> int:
        """Number of modules that :meth:`freeze` counts: the stem and the stages, or the quarters of a plain network."""
        return 1 + len(self._levels.ends)

    def forward(self, x: Tensor) -> dict[str, Tensor] | Tensor:
        """Map images `N x 3 x H x W` to levels `N x C x ceil(H/stride) x ceil(W/stride)` by name, or to the last."""
        height, width = x.shape[-2:]
        missing = [-side % self.multiple for side in (width, height)]
        padded = functional.pad(x, (0, missing[0], 0, missing[1])) if any(missing) else x
        maps = _run(self.model, padded, self._indices, self._levels.is_plain)
        if self.pyramid is not None:
            maps = self.pyramid(maps[-1])
        outputs = {}
        for (name, stride), level in zip(self.out_strides.items(), maps):
            outputs[name] = level[..., : -(-height // stride), : -(-width // stride)] if any(missing) else level
        return outputs if self.keep_outputs else outputs[name]

    def freeze(self, modules: int) -> None:
        """Exclude the parameters of `mod1`..`mod<modules>` from training: the stem, `mod1`, and stages."""
        names = [name for name, _ in self.model.named_parameters()]
        counts = self._levels.counts(names)
        # stages whose modules have no parameters, or the same
        if modules < len(counts) and any(fine >= coarse for fine, coarse in itertools.pairwise(counts)):
            raise InputError(
                f"[body] num_frozen: the stages of {self.name} share their layers: give 0 or {self.num_modules}"
            )
        for name in names[: counts[modules - 1]]:
            self.model.get_parameter(name).requires_grad_(False)

    def layer_ids(self) -> dict[str, int]:
        """Return the layer of each parameter of :attr:`model`, from 0 at the images, as timm groups them."""
        if not hasattr(self.model, "group_matcher"):
            raise InputError(f"[optimizer] layer_decay: timm does not number the layers of {self.name}")
        from timm.models import group_parameters

        ids: dict[str, int] = group_parameters(self.model, self.model.group_matcher(coarse=False), reverse=True)
        return ids

    def undecayed(self) -> set[str]:
        """Return the names of the parameters of :attr:`model` that timm excludes from weight decay."""
        listed = set(self.model.no_weight_decay()) if hasattr(self.model, "no_weight_decay") else set()
        return {name for name, p in self.model.named_parameters() if p.dim() <= 1 or name in listed}

    def download(self) -> dict[str, Tensor]:
        """Return the pre-trained weights that timm has for this network, from its cache or downloaded.

        Errors of the hub are passed on.
        """
        name = self.name.removeprefix(TIMM)
        try:
            with torch.random.fork_rng(devices=[]):
                state = create_model(name, self.arguments, pretrained=True).state_dict()
        except RuntimeError as error:
            raise InputError(f"[body] weights = timm: no weights of {self.name}: {one_line(error):.300}") from error
        return {key: state[key] for key in self.model.state_dict()}

    def without_removed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of a timm state dict without layers behind the last map: the classifier."""
        stated = self.model.pretrained_cfg.get("classifier") or ()
        classifiers = tuple(f"{name}." for name in ([stated] if isinstance(stated, str) else stated))
        whole = create_model(self.name.removeprefix(TIMM), self.arguments, meta=True).state_dict()
        removed = whole.keys() - self.model.state_dict().keys()
        return {key: value for key, value in state.items() if key not in removed and not key.startswith(classifiers)}

    @property
    def pretrained_part(self) -> nn.Module:
        """The timm network, without the pyramid."""
        return self.model

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation of the images that the timm weights were trained with; None if unknown."""
        stated = self.model.pretrained_cfg
        if not stated.get("mean") or not stated.get("std"):
            return None
        return tuple(stated["mean"]), tuple(stated["std"])

    @property
    def has_windows(self) -> bool:
        """Whether attention is within windows, whose masks or numbers depend on the size of the image."""
        return any(hasattr(module, "window_size") for module in self.model.modules())


class SimplePyramid(nn.Module):
    """Levels of strides 4 to 32 from the last map of a plain network (Li et al., arXiv 2203.16527, section 3)."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        from timm.layers import LayerNorm2d

        self.out_channels: list[int] = []
        self.levels = nn.ModuleList()
        for target in _STRIDES:
            layers: list[nn.Module] = []
            width, current = channels, stride
            while current > target:
                layers += [LayerNorm2d(width), nn.GELU()] if layers else []
                layers.append(nn.ConvTranspose2d(width, width // 2, 2, stride=2))
                width, current = width // 2, current // 2
            if current < target:
                layers.append(nn.MaxPool2d(target // current))
            self.levels.append(nn.Sequential(*layers))
            self.out_channels.append(width)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Map `N x C x h x w` to the levels, finest first."""
        return [level(x) for level in self.levels]


class _BatchNorm(nn.BatchNorm2d):
    """Batch norm over all ranks, perhaps, that counts each batch once, also if it is recomputed."""

    def __init__(self, norm: nn.BatchNorm2d, synchronise: bool) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats, "meta")
        self._parameters.update(norm._parameters)
        self._buffers.update(norm._buffers)
        self._modules.update(norm._modules)
        self.training = norm.training
        self.synchronise = synchronise

    def forward(self, input: Tensor) -> Tensor:
        """Map `N x C x H x W` to the same shape."""
        group = synchronised_over(None) if self.synchronise and self.training else None
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        # a recomputation runs within a backward pass
        again = self.training and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
        if again and mean is not None and var is not None:
            # copies, since the backward pass must keep as many tensors as in the first run
            mean, var, count = mean.clone(), var.clone(), None
        if group is not None:
            norm = Norm(mean, var, True, self.momentum, self.eps, "identity", 1.0, group, count)
            # with the scale by itself, which may be negative
            y = apply_norm(input, None, None, norm)
            if self.affine:
                y = (y * self.weight[:, None, None] + self.bias[:, None, None]).to(input.dtype)
        elif again:
            y = functional.batch_norm(input, mean, var, self.weight, self.bias, True, self.momentum or 0.0, self.eps)
        else:
            y = super().forward(input)
        for layer in self.children():
            y = layer(y)
        return y


def _positions(module: str, names: Sequence[str]) -> list[int]:
    """Return the positions of the parameters of a module, or of the nearest module around it that has some."""
    while module:
        if found := [i for i, name in enumerate(names) if name.startswith(f"{module}.")]:
            return found
        module = module.rpartition(".")[0]
    return []


@dataclass(frozen=True)
class _Levels:
    """The maps of a network in use, with stride and channels; `ends` are the last modules of its stages."""

    indices: list[int]
    maps: list[tuple[int, int]]
    is_plain: bool
    start: str
    ends: tuple[str, ...]

    def counts(self, names: Sequence[str]) -> list[int]:
        """Return how many of the parameters, by `names` in order, are in mod1, in mod1 and mod2, ..."""
        stem = _positions(self.start, names)
        counts = [stem[0] if stem else 0, *(max(_positions(end, names), default=-1) + 1 for end in self.ends)]
        return [*counts[:-1], len(names)]

    @classmethod
    def of(cls, model: nn.Module, name: str, all_strides: bool) -> _Levels:
        """Choose the maps of a network; `all_strides`: of strides 4 to 32, otherwise any."""
        stated: Any = getattr(model, "feature_info", None) or []
        info: list[dict[str, Any]] = list(getattr(stated, "info", stated))
        if not info or not hasattr(model, "forward_intermediates"):
            raise InputError(f"[body] body = {name}: timm does not return maps of this network")
        strides = [entry["reduction"] for entry in info]
        if len(set(strides)) == 1 and len(info) > 1:
            return cls._plain(info, name, all_strides)
        chosen = [max(i for i, s in enumerate(strides) if s == stride) for stride in _STRIDES if stride in strides]
        if len(chosen) < len(_STRIDES):
            if all_strides:
                own, needed = (", ".join(map(str, dict.fromkeys(values))) for values in (strides, _STRIDES))
                raise InputError(
                    f"[body] body = {name}: its maps have the strides {own}; the pyramid needs {needed}, "
                    "or one of 8, 16 and 32 alone"
                )
            chosen = list(range(len(info)))[-len(_STRIDES) :]
        names = tuple(str(info[i]["module"]) for i in chosen)
        maps = [(int(info[i]["reduction"]), int(info[i]["num_chs"])) for i in chosen]
        return cls(chosen, maps, False, names[0], names)

    @classmethod
    def _plain(cls, info: list[dict[str, Any]], name: str, all_strides: bool) -> _Levels:
        stride, count = int(info[-1]["reduction"]), len(info)
        if all_strides and stride not in _STRIDES[1:]:
            raise InputError(
                f"[body] body = {name}: its patches have {stride} pixels, the pyramid needs 8, 16 or 32: with "
                '[body] body_params = {"patch_size": 16} timm resamples the weights of many networks'
            )
        quarters = [-(-count * quarter // 4) - 1 for quarter in range(1, 5)]
        ends = tuple(str(info[i]["module"]) for i in quarters)
        channels = int(info[-1].get("num_chs_norm", info[-1]["num_chs"]))
        return cls([count - 1], [(stride, channels)], True, str(info[0]["module"]), ends)


def _arguments(name: str, params: Mapping[str, Any], drop_path: float) -> tuple[dict[str, Any], Any]:
    """Return the arguments of a network, with those for images of any size, and the network on the meta device."""
    for param in params:
        if param in _RESERVED:
            advice = f"set {_RESERVED[param]} instead" if _RESERVED[param] else "it cannot be changed"
            raise ValueError(f"{param} is no argument of the configuration: {advice}")
    try:
        model = create_model(name, params, meta=True)
    except (RuntimeError, AssertionError, LookupError, ArithmeticError, AttributeError, MemoryError) as error:
        raise InputError(f"[body] body = {TIMM}{name}: {one_line(error) or 'timm refuses it'}") from error
    known = inspect.signature(type(model)).parameters
    arguments = {key: value for key, value in _FREE_SIZE.items() if key in known} | dict(params)
    if "drop_path_rate" in known:
        arguments["drop_path_rate"] = drop_path
    elif drop_path > 0:
        raise InputError(f"[body timm] drop_path: {TIMM}{name} has none")
    return arguments, model if arguments == dict(params) else create_model(name, arguments, meta=True)


def _checkpoint_blocks(model: Any, name: str) -> None:
    try:
        model.set_grad_checkpointing(True)
    except (AssertionError, AttributeError) as error:
        raise InputError(f"[general] checkpoint_body: {name} does not support it") from error


def _run(model: Any, images: Tensor, indices: list[int], norm: bool) -> list[Tensor]:
    maps: list[Tensor] = model.forward_intermediates(
        images, indices=indices, norm=norm, output_fmt="NCHW", intermediates_only=True
    )
    return maps


def _multiple_of(model: Any, indices: list[int], maps: list[tuple[int, int]], norm: bool, name: str) -> int:
    """Return the number of which sides of images must be multiples: 32, or the side of the images of timm."""
    own = int(model.pretrained_cfg.get("input_size", (3, 224, 224))[-1])
    reason = ""
    for multiple in dict.fromkeys((max(32, maps[-1][0]), own)):
        height, width = 3 * multiple, 5 * multiple
        try:
            found = _run(model.eval(), torch.empty((1, 3, height, width), device="meta"), indices, norm)
        except Exception as error:  # each network has its own
            reason = one_line(error)
            continue
        shapes = [tuple(level.shape[1:]) for level in found]
        if shapes == [(channels, height // stride, width // stride) for stride, channels in maps]:
            return multiple
        reason = f"maps of {height} x {width} pixels are {shapes}"
    raise InputError(f"[body] body = {name}: takes images of one size only ({reason:.160}): choose another network")
