"""Backbones: ResNet and the feature pyramid on top of it."""

from seamseg.backbones.fpn import FPN, FPNBody
from seamseg.backbones.residual import NormFactory, ResidualBlock
from seamseg.backbones.resnet import RESNETS, Architecture, ResNet

__all__ = ["FPN", "RESNETS", "Architecture", "FPNBody", "NormFactory", "ResNet", "ResidualBlock"]
