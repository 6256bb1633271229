"""Dataset folder, transforms, samplers and batches; `seamseg.prepare` converts other formats to the folder."""
