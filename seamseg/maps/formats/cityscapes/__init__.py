"""The formats of Cityscapes: labels, folder layout, instance result files."""
