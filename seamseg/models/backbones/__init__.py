"""ResNet, ResNeXt, WiderResNet and DenseNet, and the feature pyramid; built by :mod:`seamseg.models.build`."""
