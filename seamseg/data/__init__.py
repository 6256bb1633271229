"""Dataset folder, transforms, samplers and batches; `seamseg.maps.prepare` converts other formats to the folder."""
