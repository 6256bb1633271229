"""Data sets: the folder format, transforms, samplers, batches; `prepare` converts others to it."""
