"""Base of the backbones: stages in a row, whose outputs are returned by name, and the classifier."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from seamseg.config.kinds import keeps_size
from seamseg.ops.abn_recompute import checkpointed
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

    With `keep_outputs` it returns the outputs of all stages by name, otherwise the last one. `classes` are outputs of a
    classifier on the global average, 0 for none. With `checkpoint` only the output of each stage that is trained is
    kept, and the backward pass computes the rest again.

    Attributes
    ----------
    out_channels, out_strides : channels and stride of the output of each stage, by name
    name : name of the network
    initialised : it sets its initial weights itself
    pretrained : it loads them in `__init__`, so that `[body] num_frozen` may freeze them
    """

    initialised: ClassVar[bool] = False
    pretrained: ClassVar[bool] = False

    def __init__(self, classes: int = 0, keep_outputs: bool = True, checkpoint: bool = False) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.classes = classes
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

    def _add_classifier(self, channels: int) -> None:
        if self.classes > 0:
            self.classifier = nn.Sequential(
                OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, self.classes))
            )

    def forward(self, x: Tensor) -> dict[str, Tensor] | Tensor:
        """Map images `N x 3 x H x W` to the outputs `N x C x h x w` of the stages and the logits of a `classifier`."""
        outputs: dict[str, Tensor] = {}
        for name in self._order:
            stage = self.get_submodule(name)
            x = checkpointed(stage, x) if self.checkpoint and _is_trained(stage, x) else stage(x)
            if self.keep_outputs and name in self.out_channels:
                outputs[name] = x
        if self.classes > 0:
            outputs["classifier"] = x = self.classifier(x)
        return outputs if self.keep_outputs else x

    @property
    def num_modules(self) -> int:
        """Number of modules that :meth:`freeze` counts."""
        return sum(name.startswith("mod") for name in self.out_channels)

    def freeze(self, modules: int) -> None:
        """Exclude the parameters of `mod1`..`mod<modules>`, and of what lies between them, from training."""
        if modules > 0:
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


def _is_trained(stage: nn.Module, x: Tensor) -> bool:
    parameters = list(stage.parameters())
    # torch.compile of torch 2.11 cannot trace bool(list)
    return len(parameters) > 0 and (x.requires_grad or any(p.requires_grad for p in parameters))


def dilations_of(
    network: str, dilation: int | Sequence[int | Sequence[int]], blocks: Sequence[int]
) -> list[tuple[int, Iterable[int]]]:
    """Return the stride of the stages `mod2`, `mod3`, ... and the dilations of their numbers of blocks.

    `dilation` is one for all blocks, or for each stage one or a list with one for each block. The stride is 2 only
    where the dilation of a stage is the number 1, see :func:`keeps_size`; in `mod2` it is of the pooling before it.
    """
    stages = list(dilation) if isinstance(dilation, Sequence) else [dilation] * len(blocks)
    if len(stages) != len(blocks):
        last = len(blocks) + 1
        raise ValueError(
            f"{network}: dilation has {len(stages)} entries, give one number or {len(blocks)} (mod2 to mod{last})"
        )
    result: list[tuple[int, Iterable[int]]] = []
    for i, (given, count) in enumerate(zip(stages, blocks), start=2):
        values = list(given) if isinstance(given, Sequence) else [given]
        if isinstance(given, Sequence) and len(values) != count:
            raise ValueError(f"{network}: dilation of mod{i} has {len(values)} entries, it has {count} blocks")
        if any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in values):
            raise ValueError(f"{network}: dilation of mod{i} must be positive integers, got {given!r}")
        repeated = values if isinstance(given, Sequence) else itertools.repeat(given, count)
        result.append((1 if keeps_size(given) else 2, repeated))
    return result
