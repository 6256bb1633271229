"""Log, metrics, TensorBoard."""
