"""Networks that `seamseg export` has written: ONNX files and `.pt2` packages."""
