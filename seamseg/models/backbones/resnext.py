"""ResNeXt-50/101/152 with pre-activation blocks (Xie et al. 2017, arXiv 1712.02616)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seamseg.models.backbones.base import Backbone, NormFactory, dilations_of
from seamseg.models.backbones.preactivation import PreActivationBlock, sequence, stem


@dataclass(frozen=True)
class ResNeXtArchitecture:
    """Blocks of `mod2`..`mod5`, groups, and the channels of the convolutions of `mod2`, which double in each stage."""

    blocks: tuple[int, ...]
    groups: int = 64
    channels: tuple[int, ...] = (128, 128, 256)


RESNEXTS: dict[str, ResNeXtArchitecture] = {
    "resnext50": ResNeXtArchitecture((3, 4, 6, 3)),
    "resnext101": ResNeXtArchitecture((3, 4, 23, 3)),
    "resnext152": ResNeXtArchitecture((3, 8, 36, 3)),
}
"""The networks by name."""


class ResNeXt(Backbone):
    """A pre-activation ResNeXt; the outputs of `mod1`..`mod5` have no norm, `bn_out` is that of the last.

    A stage whose `dilation` is not the number 1 keeps the size of its input. With `input_3x3` it begins with three 3x3
    convolutions instead of a 7x7.
    """

    def __init__(
        self,
        architecture: ResNeXtArchitecture,
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        input_3x3: bool = False,
        classes: int = 0,
        keep_outputs: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__(classes, keep_outputs, checkpoint)
        self._add("mod1", stem(norm, input_3x3), 4, 64)
        width, channels = 64, architecture.channels
        for i, (stride, dilations) in enumerate(dilations_of("ResNeXt", dilation, architecture.blocks), start=2):
            # mod1 always pools
            step = stride if i > 2 else 1
            blocks = []
            for block, d in enumerate(dilations):
                first = step if block == 0 else 1
                blocks.append(PreActivationBlock(width, channels, norm, first, d, architecture.groups))
                width = channels[-1]
            self._add(f"mod{i}", sequence(blocks), step, width)
            channels = tuple(2 * c for c in channels)
        self._add("bn_out", norm(width), 1, width)
        self._add_classifier(width)
