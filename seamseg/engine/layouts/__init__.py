"""What the files of Cityscapes and of Mapillary Vistas look like, for those who write predictions or ground truth."""
