"""ImageNet classification: training and validation of the backbones with in-place ABN, from JSON configurations."""

# `result_of` finds the types that are imported
from seamseg.contrib.classification.result import Classification

__all__ = ["Classification"]
