"""WiderResNet-16/20/38 (Wu et al., arXiv 1611.10080) and their A2 form for dense prediction (arXiv 1712.02616)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from seamseg.config.kinds import is_dilated_a2
from seamseg.models.backbones.base import Backbone, NormFactory
from seamseg.models.backbones.preactivation import PreActivationBlock, sequence
from seamseg.ops.norm import NormSequential
from seamseg.ops.pooling import MaxPool3x3

WIDER_RESNETS: dict[str, tuple[int, ...]] = {
    "wider_resnet16": (1, 1, 1, 1, 1, 1),
    "wider_resnet20": (1, 1, 1, 3, 1, 1),
    "wider_resnet38": (3, 3, 6, 3, 1, 1),
}
"""Blocks of `mod2`..`mod7` by name; the A2 form has the same."""

_CHANNELS = ((128, 128), (256, 256), (512, 512), (512, 1024), (512, 1024, 2048), (1024, 2048, 4096))


@dataclass(frozen=True)
class _Layout:
    """Where the size is reduced, dilations and dropouts; each by number of the module."""

    pools: tuple[int, ...]
    strides: Mapping[int, int] = field(default_factory=dict)
    dilations: Mapping[int, int] = field(default_factory=dict)
    dropouts: Mapping[int, float] = field(default_factory=dict)


_A1 = _Layout(pools=(2, 3, 4, 5, 6))
_A2 = _Layout(pools=(2, 3), strides={4: 2, 5: 2, 6: 2}, dropouts={6: 0.3, 7: 0.5})
_A2_DILATED = replace(_A2, strides={4: 2}, dilations={5: 2, 6: 4, 7: 4})


class _LaidOut(Backbone):
    """The stages of a WiderResNet with a given layout."""

    def __init__(self, blocks: Sequence[int], norm: NormFactory, layout: _Layout, *options: Any) -> None:
        super().__init__(*options)
        conv = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self._add("mod1", NormSequential(OrderedDict(conv1=conv)), 1, 64)
        width = 64
        for i, (count, channels) in enumerate(zip(blocks, _CHANNELS), start=2):
            if i in layout.pools:
                self._add(f"pool{i}", MaxPool3x3(2), 2)
            stride, dilation, dropout = layout.strides.get(i, 1), layout.dilations.get(i, 1), layout.dropouts.get(i, 0)
            made = []
            for block in range(count):
                step = stride if block == 0 else 1
                made.append(PreActivationBlock(width, channels, norm, step, dilation, dropout=dropout))
                width = channels[-1]
            self._add(f"mod{i}", sequence(made), stride, width)
        self._add("bn_out", norm(width), 1, width)
        self._add_classifier(width)


class WiderResNet(_LaidOut):
    """A WiderResNet with a max pooling before each of `mod2`..`mod6`.

    The outputs of `mod1`..`mod7` have no norm, `bn_out` is that of the last.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        norm: NormFactory,
        classes: int = 0,
        keep_outputs: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(blocks, norm, _A1, classes, keep_outputs, checkpoint)


class WiderResNetA2(_LaidOut):
    """A WiderResNet with strides in place of three poolings, dropout in `mod6` and `mod7`, and optional dilation.

    The state dict has the keys of a :class:`WiderResNet`. The stride is 32; with the dilation True, or (1, 2, 4, 4), it
    is 8, with dilation 2 in `mod5` and 4 in `mod6` and `mod7`.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        norm: NormFactory,
        dilation: bool | Sequence[int] = False,
        classes: int = 0,
        keep_outputs: bool = True,
        checkpoint: bool = False,
    ) -> None:
        dilated = is_dilated_a2(dilation)
        if not dilated and dilation is not False:
            raise ValueError(f"WiderResNetA2: dilation must be True, False or (1, 2, 4, 4), got {dilation!r}")
        super().__init__(blocks, norm, _A2_DILATED if dilated else _A2, classes, keep_outputs, checkpoint)
