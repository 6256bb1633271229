"""Backbones: ResNet and the feature pyramid on top of it."""

from seamseg.models.backbones.fpn import FPN, FPNBody
from seamseg.models.backbones.residual import NormFactory, ResidualBlock
from seamseg.models.backbones.resnet import RESNETS, Architecture, ResNet

__all__ = ["FPN", "RESNETS", "Architecture", "FPNBody", "NormFactory", "ResNet", "ResidualBlock"]
