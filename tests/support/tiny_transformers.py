"""Tiny panoptic networks of transformers with random weights, in the folders that `save_pretrained` writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import seamseg
from seamseg.maps.formats.cityscapes.labels import cityscapes_classes
from seamseg.utils.errors import InputError

SIDE = 64
SWIN = {
    "model_type": "swin",
    "image_size": 64,
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 2, 2],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
DETR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 6,
}
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 16,
    "num_blocks": 1,
    "num_queries": 6,
    "num_upscale_blocks": 2,
    "num_register_tokens": 1,
}
_DECODER = {
    "hidden_dim": 32,
    "encoder_feedforward_dim": 16,
    "dim_feedforward": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "num_queries": 6,
    "backbone_config": SWIN,
}
_ONEFORMER = {
    **_DECODER,
    "conv_dim": 32,
    "mask_dim": 32,
    "text_encoder_width": 32,
    "text_encoder_num_layers": 1,
    "text_encoder_vocab_size": 64,
    "text_encoder_context_length": 20,
    "text_encoder_n_ctx": 2,
    "task_seq_len": 20,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mask2former": ("Mask2FormerForUniversalSegmentation", {**_DECODER, "mask_feature_size": 32, "feature_size": 32}),
    "maskformer": (
        "MaskFormerForInstanceSegmentation",
        {"fpn_feature_size": 32, "mask_feature_size": 32, "backbone_config": SWIN,
         "decoder_config": {"model_type": "detr", **DETR}},
    ),
    "oneformer": ("OneFormerForUniversalSegmentation", _ONEFORMER),
    "eomt": ("EomtForUniversalSegmentation", VIT),
    "eomt_dinov3": ("EomtDinov3ForUniversalSegmentation", {**VIT, "intermediate_size": 16}),
    "detr": ("DetrForSegmentation", {**DETR, "backbone_config": RESNET}),
}  # fmt: skip
CITYSCAPES = cityscapes_classes().categories
SMALL = {"device": "cpu", "shortest_size": 40, "score_threshold": 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save("mask2former", tmp_path / "net")


def build(family: str, names: list[str] | None = None, annealed: bool = False, **keys: Any) -> Any:
    """Return a network with random weights of a fixed seed; `annealed`: its masked attention is off."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    name, config = CONFIGS[family]
    model_class = getattr(transformers, name)
    labels = dict(enumerate(CITYSCAPES if names is None else names))
    net = model_class(model_class.config_class(**{**config, "id2label": labels, **keys})).eval()
    with torch.no_grad():  # so that queries differ, and some classes are sure
        for key, value in net.named_parameters():
            if "class" in key and value.dim() == 2:
                value.normal_(0, 2)
    if annealed:
        net.attn_mask_probs.zero_()
    return net


def save(family: str, folder: Path, names: list[str] | None = None, **keys: Any) -> Path:
    """Write a network as its library does, with its tokenizer; `keys` as for :func:`build`."""
    net = build(family, names, **keys)
    net.save_pretrained(folder)
    if family == "oneformer":
        write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of CLIP that knows single letters only."""
    tokens = [letter + end for letter in "bcdefghiklnopsta" for end in ("", "</w>")]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    edit(folder / "config.json", text_encoder_vocab_size=64)


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return np.array(Image.fromarray(values).resize((width, height)))


def refusal(model: object, kind: type[Exception] = InputError, **options: Any) -> str:
    with pytest.raises(kind) as error:
        seamseg.load(str(model), **{"device": "cpu", **options})
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_equal(a: Any, b: Any) -> None:
    assert a.classes.tolist() == b.classes.tolist()
    for name, tolerance in (("boxes", 0), ("scores", 1e-4), ("mask_logits", 1e-3)):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=tolerance)
    assert a.queries.classes.tolist() == b.queries.classes.tolist()
    np.testing.assert_allclose(a.queries.scores, b.queries.scores, atol=1e-4)
    np.testing.assert_allclose(a.queries.mask_logits, b.queries.mask_logits, atol=1e-3)
    assert a.size == b.size
    assert (a.semantic == b.semantic).mean() > 0.999
