"""Text log, metrics file and TensorBoard output of a training."""
