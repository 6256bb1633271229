"""Text log, metrics file, sample images and TensorBoard files of a training."""
