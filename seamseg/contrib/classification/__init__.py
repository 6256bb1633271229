"""ImageNet classification: training and validation of the backbones with in-place ABN, from JSON configurations."""
