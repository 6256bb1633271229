"""ResNet-18/34/50/101/152 (He et al. 2016) with configurable norm + activation layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from seamseg.models.backbones.residual import NormFactory, ResidualBlock
from seamseg.ops.abn_recompute import checkpointed
from seamseg.ops.norm import NormSequential


@dataclass(frozen=True)
class Architecture:
    """Blocks of `mod2`..`mod5`, and whether they are bottlenecks."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool

    def channels(self, module: int) -> tuple[int, ...]:
        """Return the output channels of the convolutions of a block of `mod<module>`, module 2 to 5."""
        width = 64 * 2 ** (module - 2)
        return (width, width, 4 * width) if self.bottleneck else (width, width)


RESNETS: dict[str, Architecture] = {
    "resnet18": Architecture((2, 2, 2, 2), bottleneck=False),
    "resnet34": Architecture((3, 4, 6, 3), bottleneck=False),
    "resnet50": Architecture((3, 4, 6, 3), bottleneck=True),
    "resnet101": Architecture((3, 4, 23, 3), bottleneck=True),
    "resnet152": Architecture((3, 8, 36, 3), bottleneck=True),
}
"""The networks by name."""

MODULES = ("mod1", "mod2", "mod3", "mod4", "mod5")
"""Names of the stages, finest first."""


class ResNet(nn.Module):
    """A ResNet that returns the output of each of its five stages (docs/contract.md, section 3 "Body").

    Parameters
    ----------
    architecture : an entry of :data:`RESNETS`
    norm : factory of norm + activation layers
    dilation : 1, or one dilation for each of `mod2`..`mod5`; a stage whose dilation is above 1 keeps its input's size
    dropout : channel dropout of the blocks of each stage: one probability, or one for each of `mod2`..`mod5`
    classes : outputs of a classifier on the global average, 0 for none
    caffe_mode : give the first convolution a bias, as networks converted from Caffe have
    checkpoint : of each stage that is trained keep only the output for the backward pass, which computes the rest again
    """

    def __init__(
        self,
        architecture: Architecture,
        norm: NormFactory,
        dilation: int | Sequence[int] = 1,
        dropout: float | Sequence[float] = 0.0,
        classes: int = 0,
        caffe_mode: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        dilations = _four(dilation, "dilation")
        dropouts = _four(dropout, "dropout")

        self.mod1 = NormSequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=caffe_mode),
                bn1=norm(64),
                pool1=nn.MaxPool2d(3, stride=2, padding=1),
            )
        )
        self.out_channels = {"mod1": 64}
        self.out_strides = {"mod1": 4}
        width, total_stride = 64, 4
        for module, blocks, dil, drop in zip(range(2, 6), architecture.blocks, dilations, dropouts):
            channels = architecture.channels(module)
            stride = 2 if module > 2 and dil == 1 else 1
            stage: OrderedDict[str, nn.Module] = OrderedDict()
            for block in range(1, blocks + 1):
                stage[f"block{block}"] = ResidualBlock(
                    width, channels, norm, stride=stride if block == 1 else 1, dilation=int(dil), dropout=drop
                )
                width = channels[-1]
            name = f"mod{module}"
            setattr(self, name, nn.Sequential(stage))
            total_stride *= stride
            self.out_channels[name] = width
            self.out_strides[name] = total_stride

        if classes > 0:
            self.classifier = nn.Sequential(
                OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(width, classes))
            )
        self.classes = classes
        self.checkpoint = checkpoint

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Map images `N x 3 x H x W` to outputs of `mod1`..`mod5`, and `classifier` (`N x classes`) if there is one."""
        outputs: dict[str, Tensor] = {}
        for name in MODULES:
            stage = self.get_submodule(name)
            trained = x.requires_grad or any(p.requires_grad for p in stage.parameters())
            x = checkpointed(stage, x) if self.checkpoint and trained else stage(x)
            outputs[name] = x
        if self.classes > 0:
            outputs["classifier"] = self.classifier(x)
        return outputs

    def freeze(self, modules: int) -> None:
        """Exclude the parameters of the first `modules` stages from training."""
        for name in MODULES[:modules]:
            self.get_submodule(name).requires_grad_(False)


def _four(value: float | Sequence[float], name: str) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,) * 4
    if len(values) != 4:
        raise ValueError(f"ResNet: {name} has {len(values)} entries, give one number or four (mod2 to mod5)")
    return values
