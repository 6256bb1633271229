"""Parts that stand on the core, and that it does not know; each can be deleted without a change elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seamseg.extensions import COMMANDS, FORMATS, OPENERS, RECIPES

if TYPE_CHECKING:
    from seamseg.inference.predictor import OpenedModel


def _open_other(model: Any, *arguments: Any) -> OpenedModel | None:
    from seamseg.checkpoints.model_path import is_exported, is_foreign

    if is_exported(model):
        from seamseg.contrib.exported.network import open_exported

        return open_exported(model, *arguments)
    if is_foreign(model):
        from seamseg.contrib.foreign import open_foreign

        return open_foreign(model, *arguments)
    return None


COMMANDS |= {
    "serve": "Serve a trained model over HTTP.",
    "export": "Export a trained model to a file for other engines.",
    "convert-model": "Write a trained model as safetensors, configuration and classes.",
    "push": "Upload a trained model to the Hugging Face Hub.",
    "classify": "Train and validate ImageNet classifiers.",
}
OPENERS.append(_open_other)
FORMATS.append("seamseg.contrib.annotation_tools")
RECIPES.append("seamseg.contrib.recipes")
