"""ImageNet classification: training and validation of the backbones with in-place ABN, from JSON configurations."""

from seamseg.contrib.classification.result import Classification

__all__ = ["Classification"]
