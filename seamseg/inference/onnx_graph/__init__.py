"""Checks of the graph of an untrusted ONNX file, before an engine reads it."""
