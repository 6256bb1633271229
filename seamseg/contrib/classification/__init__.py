"""ImageNet classification: training and validation of the backbones with in-place ABN, from JSON configurations."""

from seamseg.contrib.classification.result import Classification
from seamseg.inference.results import RESULTS

RESULTS["classification"] = Classification
