"""ResNet-18/34/50/101/152 (He et al. 2016) with configurable norm + activation layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from seamseg.models.backbones.base import Backbone, NormFactory, dilations_of
from seamseg.models.backbones.residual import ResidualBlock
from seamseg.ops.norm import NormSequential
from seamseg.ops.pooling import MaxPool2d


@dataclass(frozen=True)
class Architecture:
    """Blocks of `mod2`..`mod5`, whether they are bottlenecks, and the channels of `mod1`, which the others follow."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    width: int = 64

    def channels(self, module: int) -> tuple[int, ...]:
        """Return the output channels of the convolutions of a block of `mod<module>`, module 2 to 5."""
        width = self.width * 2 ** (module - 2)
        return (width, width, 4 * width) if self.bottleneck else (width, width)


RESNETS: dict[str, Architecture] = {
    "resnet18": Architecture((2, 2, 2, 2), bottleneck=False),
    "resnet34": Architecture((3, 4, 6, 3), bottleneck=False),
    "resnet50": Architecture((3, 4, 6, 3), bottleneck=True),
    "resnet101": Architecture((3, 4, 23, 3), bottleneck=True),
    "resnet152": Architecture((3, 8, 36, 3), bottleneck=True),
}
"""The networks by name."""


class ResNet(Backbone):
    """A ResNet that returns the output of each of its five stages (docs/contract.md, section 3 "Body").

    A stage whose `dilation` is not the number 1 keeps the size of its input, and before a `mod2` of this kind there is
    no max pooling. `dropout` of channels is one probability, or one for each of `mod2`..`mod5`. `caffe_mode` gives the
    first convolution a bias, as networks converted from Caffe have.
    """

    def __init__(
        self,
        architecture: Architecture,
        norm: NormFactory,
        dilation: int | Sequence[int | Sequence[int]] = 1,
        dropout: float | Sequence[float] = 0.0,
        classes: int = 0,
        caffe_mode: bool = False,
        checkpoint: bool = False,
        keep_outputs: bool = True,
    ) -> None:
        super().__init__(classes, keep_outputs, checkpoint)
        dropouts = tuple(dropout) if isinstance(dropout, Sequence) else (dropout,) * 4
        if len(dropouts) != 4:
            raise ValueError(f"ResNet: dropout has {len(dropouts)} entries, give one number or four (mod2 to mod5)")

        stages = dilations_of("ResNet", dilation, architecture.blocks)
        width = architecture.width
        stem: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(3, width, 7, stride=2, padding=3, bias=caffe_mode), bn1=norm(width)
        )
        pooling, _ = stages[0]
        if pooling > 1:
            stem["pool1"] = MaxPool2d(3, stride=pooling, padding=1)
        self._add("mod1", NormSequential(stem), 2 * pooling, width)
        for i, (stride, dilations) in enumerate(stages, start=2):
            channels, blocks = architecture.channels(i), OrderedDict[str, nn.Module]()
            step = stride if i > 2 else 1
            for block, d in enumerate(dilations, start=1):
                first = step if block == 1 else 1
                blocks[f"block{block}"] = ResidualBlock(width, channels, norm, first, d, dropouts[i - 2])
                width = channels[-1]
            self._add(f"mod{i}", nn.Sequential(blocks), step, width)
        self._add_classifier(width)
