"""Base of the backbones: stages in a row, whose outputs are returned by name, and the feature pyramid on them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops.abn_recompute import checkpointed
from seamseg.ops.norm import InPlaceABN, NormSequential, is_plain, is_trained_in_half
from seamseg.utils.errors import InputError

NormFactory = Callable[..., nn.Module]
"""Makes a norm + activation layer: `norm(channels)` or `norm(channels, activation="identity")`."""


@dataclass(frozen=True)
class BodyContext:
    """Arguments of a backbone.

    Attributes
    ----------
    norm : factory of norm + activation layers, `norm(channels)`, of `[body] normalization_mode`; of `a+b`, a
    name : `[body] body`, with what follows a colon
    params : `[body] body_params`
    checkpoint : recompute activations in the backward pass, `[general] checkpoint_body`
    keep_outputs : return the outputs of all stages, not only the last one
    synchronise : norms take the statistics of all processes
    """

    norm: NormFactory
    name: str
    params: Mapping[str, Any]
    checkpoint: bool = False
    keep_outputs: bool = True
    synchronise: bool = False


class Backbone(nn.Module):
    """A network of stages `mod1`, `mod2`, ... for images; subclasses add the stages.

    With `keep_outputs` it returns the outputs of all stages by name, otherwise the last one; with a `classifier` its
    logits as well. With `checkpoint` the backward pass computes stages again. `out_channels` and `out_strides` are of
    the output of each stage, by name. An `initialised` network sets its initial weights itself, a `pretrained` one
    loads them in `__init__`, so that `[body] num_frozen` may freeze them.
    """

    initialised: ClassVar[bool] = False
    pretrained: ClassVar[bool] = False

    def __init__(self, keep_outputs: bool = True, checkpoint: bool = False) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.classifier: nn.Module | None = None
        self.keep_outputs = keep_outputs
        self.checkpoint = checkpoint
        self.out_channels: dict[str, int] = {}
        self.out_strides: dict[str, int] = {}
        self._order: list[str] = []
        self._stride = 1

    def _add(self, name: str, stage: nn.Module, stride: int, channels: int | None = None) -> None:
        """Append a stage, of this stride relative to the one before; its output is returned if `channels` are given."""
        self.add_module(name, stage)
        self._order.append(name)
        self._stride *= stride
        if channels is not None:
            self.out_channels[name] = channels
            self.out_strides[name] = self._stride

    def forward(self, x: Tensor) -> dict[str, Tensor] | Tensor:
        """Map images `N x 3 x H x W` to the outputs `N x C x h x w` of the stages and the logits of a `classifier`."""
        outputs: dict[str, Tensor] = {}
        for name in self._order:
            stage = self.get_submodule(name)
            parameters = list(stage.parameters()) if self.checkpoint else []
            # torch.compile of torch 2.11 cannot trace bool(list)
            trained = len(parameters) > 0 and (x.requires_grad or any(p.requires_grad for p in parameters))
            x = checkpointed(stage, x) if trained else stage(x)
            if self.keep_outputs and name in self.out_channels:
                outputs[name] = x
        if self.classifier is not None:
            outputs["classifier"] = x = self.classifier(x)
        return outputs if self.keep_outputs else x

    @property
    def num_modules(self) -> int:
        """Number of modules that :meth:`freeze` counts."""
        return sum(name.startswith("mod") for name in self.out_channels)

    def freeze(self, modules: int) -> None:
        """Exclude the parameters of `mod1`..`mod<modules>`, and of what lies between them, from training."""
        last = self._order.index(f"mod{modules}")
        for name in self._order[: last + 1]:
            self.get_submodule(name).requires_grad_(False)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation of the images that pre-trained weights need; None if unknown."""
        return None

    @property
    def has_windows(self) -> bool:
        """Whether attention is within windows, whose masks or numbers depend on the size of the image."""
        return False

    @property
    def pretrained_part(self) -> nn.Module:
        """The module that files of pre-trained weights are for."""
        return self

    def without_removed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the entries of a file of pre-trained weights without unused layers."""
        return dict(state)

    def download(self) -> dict[str, Tensor]:
        """Return the weights of :attr:`pretrained_part` that a library has; InputError if there are none."""
        raise InputError(f"[body] weights = timm: {self.name} is not a timm network")

    def layer_ids(self) -> dict[str, int]:
        """Return the number of the layer of each parameter of :attr:`pretrained_part`, from 0 at the images."""
        raise InputError(f"[optimizer] layer_decay: {self.name} does not number its layers")

    def undecayed(self) -> set[str]:
        """Return the names of the parameters of :attr:`pretrained_part` without weight decay."""
        return set()


class Body(Backbone):
    """A backbone of a user: derive from it, and register the class with :func:`seamseg.components.body`.

    `forward` maps images `N x 3 x H x W` to a dict of maps `N x channels x ceil(H / stride) x ceil(W / stride)`, finest
    first. Convolutions keep the initial weights that the class gives them. `[body] num_frozen` counts its child modules
    in the order in which they are assigned.

    Parameters
    ----------
    keys : values of the section `[body NAME]`
    context : what the network is built for

    Attributes
    ----------
    strides : stride of each map by its name, finest first; all are inputs of the pyramid unless `[fpn] inputs` names
        some
    out_channels : channels of each map by its name, set by `__init__`
    pretrained : whether `__init__` loads weights, so that `[body] num_frozen` may freeze them without others
    """

    initialised = True
    strides: ClassVar[Mapping[str, int]] = {}

    def __init__(self, keys: Any, context: BodyContext) -> None:
        super().__init__()
        self.out_strides = dict(self.strides)
        self.keys = keys
        self.context = context
        self.name = context.name

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Map images to the outputs of the stages, see above."""
        raise NotImplementedError

    @property
    def num_modules(self) -> int:
        """Number of modules that :meth:`freeze` counts."""
        return sum(1 for _ in self.children())

    def freeze(self, modules: int) -> None:
        """Exclude the parameters of the first child modules from training."""
        for module in itertools.islice(self.children(), modules):
            module.requires_grad_(False)


class FPN(nn.Module):
    """Top-down pyramid over the maps of a backbone (Lin et al. 2017; docs/contract.md, section 3 "FPN").

    Parameters
    ----------
    in_channels : channels of the backbone's maps, finest first
    out_channels : channels of every level
    extra_scales : coarser levels, each half the size of the last, made from the backbone's last map
    norm : factory of norm + activation layers
    interpolation : how a coarse map is enlarged: `nearest` or `bilinear`
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        extra_scales: int,
        norm: NormFactory,
        interpolation: str = "nearest",
    ) -> None:
        super().__init__()
        self.interpolation, self.extra_scales = interpolation, extra_scales
        self.lateral, self.output, self.extra = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        coarser = ([in_channels[-1]] + [out_channels] * (extra_scales - 1))[:extra_scales]
        layers = [(self.lateral, c, 1, 1) for c in in_channels]
        layers += [(self.output, out_channels, 3, 1) for _ in in_channels]
        for part, width, kernel, stride in layers + [(self.extra, c, 3, 2) for c in coarser]:
            conv = nn.Conv2d(width, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)
            part.append(NormSequential(OrderedDict(conv=conv, bn=norm(out_channels))))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Map maps of the backbone, finest first, to levels `N x out_channels x h x w`, finest first."""
        sums: list[Tensor] = []
        for lateral, x in list(zip(self.lateral, maps))[:0:-1]:
            sums.insert(0, self._sum(lateral, x, *sums[:1]))
        finest, output, inputs = self.lateral[0], self.output[0], (maps[0], *sums[:1])
        if is_plain(output, NormSequential) and is_trained_in_half(maps[0], cast(nn.Module, finest.bn), output[-1]):
            conv, norm = output
            assert isinstance(norm, InPlaceABN)
            # the largest sum, which nothing else reads, is made again; the convolution ends the part and runs once
            y, deferred = checkpointed(lambda *maps: norm.convolve(conv, self._sum(finest, *maps)), *inputs)
            levels = [norm(y, deferred)]
        else:
            levels = [output(self._sum(finest, *inputs))]
        levels += [output(x) for output, x in zip(self.output[1:], sums)]
        x = maps[-1]
        for extra in self.extra:
            x = extra(x)
            levels.append(x)
        return levels

    def _sum(self, lateral: nn.Module, x: Tensor, coarse: Tensor | None = None) -> Tensor:
        """Return the lateral map of `x` plus the enlarged next coarser sum, if there is one."""
        # with an in-place norm only `x` is kept: the sum is kept in any case
        fine: Tensor = checkpointed(lateral, x) if isinstance(lateral.bn, InPlaceABN) else lateral(x)
        if coarse is None:
            return fine
        height, width = coarse.shape[-2:]
        # a compiler fuses the enlarged map anyway, and must not recompile where sizes are not exactly doubled
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or self.interpolation != "nearest"
        if plain or fine.shape[-2:] != (2 * height, 2 * width):
            return fine + functional.interpolate(coarse, size=fine.shape[-2:], mode=self.interpolation)
        # each coarse value is added to its four pixels, without an enlarged map
        cells = torch.unflatten(torch.unflatten(fine, 3, (width, 2)), 2, (height, 2))
        cells.add_(coarse[:, :, :, None, :, None])
        return fine


class FPNBody(nn.Module):
    """Images to pyramid levels.

    Parameters
    ----------
    backbone : network that returns a dict of maps
    fpn : the pyramid
    inputs : names of the maps that are inputs of the pyramid, finest first
    checkpoint : keep only the levels of the pyramid for the backward pass, which computes the rest again
    """

    def __init__(self, backbone: Backbone, fpn: FPN, inputs: Sequence[str], checkpoint: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.fpn = fpn
        self.inputs = tuple(inputs)
        self.checkpoint = checkpoint

    def forward(self, images: Tensor) -> list[Tensor]:
        """Map images `N x 3 x H x W` to the levels of the pyramid, finest first."""
        maps = self.backbone(images)
        used = [maps[name] for name in self.inputs]
        levels: list[Tensor] = checkpointed(self.fpn, used) if self.checkpoint else self.fpn(used)
        return levels


def dilations_of(
    network: str, dilation: int | Sequence[int | Sequence[int]], blocks: Sequence[int]
) -> list[tuple[int, Iterable[int]]]:
    """Return the stride of the stages `mod2`, ..., which is 2 at a dilation of 1, and the dilations of their blocks."""
    stages = list(dilation) if isinstance(dilation, Sequence) else [dilation] * len(blocks)
    if len(stages) != len(blocks):
        raise ValueError(f"{network}: dilation has {len(stages)} entries, give one number or {len(blocks)}, from mod2")
    result: list[tuple[int, Iterable[int]]] = []
    for i, (given, count) in enumerate(zip(stages, blocks), start=2):
        values = list(given) if isinstance(given, Sequence) else [given] * count
        if len(values) != count:
            raise ValueError(f"{network}: dilation of mod{i} has {len(values)} entries, it has {count} blocks")
        if any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in values):
            raise ValueError(f"{network}: dilation of mod{i} must be positive integers, got {given!r}")
        result.append((2 if given == 1 else 1, values))
    return result
