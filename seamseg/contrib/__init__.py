"""Parts that stand on the core, and that it does not know; each can be deleted without a change elsewhere."""

from __future__ import annotations

from seamseg.extensions import COMMANDS, FORMATS, OPENERS, RECIPES

COMMANDS |= {
    "serve": "Serve a trained model over HTTP.",
    "export": "Export a trained model to a file for other engines.",
    "convert-model": "Write a trained model as safetensors, configuration and classes.",
    "push": "Upload a trained model to the Hugging Face Hub.",
    "classify": "Train and validate ImageNet classifiers.",
}
OPENERS["exported"] = "seamseg.contrib.exported.network"
OPENERS |= dict.fromkeys(("torchvision", "transformers"), "seamseg.contrib.foreign")
FORMATS.append("seamseg.contrib.annotation_tools")
RECIPES.append("seamseg.contrib.recipes")
