"""Panoptic networks of transformers: run as their authors do, at their sizes; read safely, or refused in one line."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.fake_hub import fake_hub
from support.tiny_transformers import CONFIGS, SIDE, SMALL, assert_equal, build, edit, folder, photo, refusal, save
from torch.nn import functional

import seamseg
from seamseg.checkpoints.model_path import digest
from seamseg.contrib.foreign.class_lists import known_lists
from seamseg.results import Panoptic
from seamseg.utils.errors import SeamsegError

__all__ = ["fake_hub", "folder"]


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each family with the classes of Cityscapes; do not write to them."""
    root = tmp_path_factory.mktemp("transformers")
    return {name: save(name, root / name) for name in CONFIGS}


def test_results_and_options(folders, family):
    model = seamseg.load(folders[family], **SMALL)
    assert (model.kind, model.network.precision, model.metadata.num_thing) == ("panoptic", "float32", 8)
    result = model.predict(photo(100, 150))
    assert isinstance(result, Panoptic)
    assert result.size == (100, 150)
    image = photo(160, 300)
    tiled = seamseg.load(folders[family], **{**SMALL, "shortest_size": 160}, tiles=128).raw([image])[0]
    assert tiled.queries is None
    assert tiled.semantic.shape == (160, 300)
    half = seamseg.load(folders[family], precision="bf16", classes="car,road", preview=True, **SMALL)
    assert half.network.precision == "bfloat16"
    assert {segment.name for segment in half.predict(image).segments} <= {"car", "road"}
    # the thresholds of the authors, unless options change them
    for given, wanted in (({}, (0.85 if family == "detr" else 0.8, 0.8)), ({"overlap_threshold": 0.6}, (0.1, 0.6))):
        t = seamseg.load(folders[family], **{**(SMALL if given else {"device": "cpu"}), **given}).thresholds
        assert (t.score_threshold, t.overlap_threshold) == wanted


def test_input_of_the_network(folders, family):
    """The outputs are those of the library for an image that is normalised and padded as the authors do."""
    predictor = seamseg.load(folders[family], **SMALL)
    image = photo(40, 50)
    prediction = predictor.raw([image])[0]
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = torch.from_numpy(image).permute(2, 0, 1) / 255
    if family.startswith("eomt"):
        values, padded = (functional.pad(pixels, (0, SIDE - 50, 0, SIDE - 40)) - mean) / std, (SIDE, SIDE)
    elif family == "detr":
        values, padded = (pixels - mean) / std, (40, 50)
    else:
        values, padded = functional.pad((pixels - mean) / std, (0, 14, 0, 24)), (64, 64)
    further = {}
    if family == "oneformer":
        tokens = predictor.network._inputs["task_inputs"]
        assert tokens.shape == (1, 20)
        assert (tokens != 0).sum() == 19  # start, 17 letters, end
        further["task_inputs"] = tokens
    with torch.inference_mode():
        outputs = build(family)(pixel_values=values[None], **further)
    masks = outputs["pred_masks" if family == "detr" else "masks_queries_logits"][0]
    scores = outputs["logits" if family == "detr" else "class_queries_logits"][0].softmax(-1)
    kept = scores.argmax(-1) < 19
    assert kept.any()
    assert prediction.queries.padded_size == padded
    np.testing.assert_allclose(prediction.queries.mask_logits, masks[kept], atol=1e-4)
    np.testing.assert_allclose(prediction.queries.scores, scores[kept].max(-1)[0], atol=1e-5)
    assert prediction.queries.classes.tolist() == scores[kept].argmax(-1).tolist()


@pytest.mark.parametrize("name", ["eomt", "eomt_dinov3"])
def test_images_above_the_square(folders, name):
    network = seamseg.load(folders[name], device="cpu").network
    large, small = photo(2 * 40, 2 * SIDE), np.asarray(Image.fromarray(photo(80, 128)).resize((SIDE, 40), 2))
    found, expected = network.run([large])[0], network.run([small])[0]
    assert (found.size, found.queries.padded_size) == ((80, 128), (128, 128))
    np.testing.assert_allclose(found.queries.mask_logits, expected.queries.mask_logits, atol=1e-4)


def test_sizes_of_the_authors(tmp_path):
    lists = {name: known.metadata.categories for name, known in known_lists().items()}
    expected = {"cityscapes": (1024, 2048), "vistas": (1536, 2048), "vistas_v2": (1536, 2048)}
    expected |= {"coco_panoptic": (800, 1066), "ade20k": (640, 853)}
    for name, names in lists.items():
        folder = save("mask2former", tmp_path / name, names)
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 384, "width": 384}}))
        model = seamseg.load(folder, device="cpu")
        assert model.input_size.of((3000, 6000 if name == "cityscapes" else 4000)) == expected[name], name
        assert (model.thresholds.score_threshold, model.thresholds.overlap_threshold) == (0.8, 0.8)
    assert model.input_size.of((640, 6400)) == (256, 2560)
    folder = save("maskformer", tmp_path / "maskformer", lists["ade20k"])
    assert seamseg.load(folder, device="cpu").thresholds.score_threshold == 0.7


def test_size_and_normalisation_of_the_processor(tmp_path):
    folder = save("mask2former", tmp_path / "net", ["lawn", "dog"])
    classes = tmp_path / "classes.json"
    classes.write_text(json.dumps([{"id": 1, "name": "lawn", "isthing": 0}, {"id": 2, "name": "dog", "isthing": 1}]))
    edges, content = {"shortest_edge": 320, "longest_edge": 640}, {"image_mean": [0.5] * 3, "image_std": [1, 1, 2]}
    for size, expected in ((edges, (320, 426)), ({"height": 384, "width": 384}, (800, 1066))):
        (folder / "preprocessor_config.json").write_text(json.dumps({**content, "size": size}))
        model = seamseg.load(folder, device="cpu", meta=classes)
        assert model.input_size.of((3000, 4000)) == expected
    values = model.network.normalise(torch.zeros(3, 1, 1, dtype=torch.uint8)).flatten().tolist()
    assert values == [-0.5, -0.5, -0.25]


def test_commands(tmp_path, seamseg_main, capsys):
    """With a class list; of the card of a folder, its first part states the licence."""
    folder = save("detr", tmp_path / "net", ["lawn", "dog"])
    (folder / "README.md").write_text("---\nlibrary_name: x\nlicense: 'mit'\n---\n# A card\nlicense: other\n")
    Image.fromarray(photo(60, 80)).save(tmp_path / "a.png")
    classes = tmp_path / "classes.ini"
    classes.write_text("[lawn]\nid = 1\nkind = stuff\n[dog]\nid = 2\nkind = thing\n")
    words = ["predict", folder, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--shortest-size", 40]
    assert seamseg_main(*words) == 2
    assert "with --meta FILE" in capsys.readouterr().err
    assert seamseg_main(*words, "--meta", classes) == 0
    header = json.loads((tmp_path / "out/predictions.jsonl").read_text().splitlines()[0])
    assert digest(folder) in json.dumps(header)


def test_pickled_weights(folder):
    image, net = photo(40, 60), build("mask2former")
    expected = seamseg.load(folder, **SMALL).raw([image])[0]
    (folder / "model.safetensors").unlink()
    assert "holds no weights: neither model.safetensors nor pytorch_model.bin" in refusal(folder)
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    assert_equal(seamseg.load(folder, **SMALL).raw([image])[0], expected)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": _Bomb()}))
    assert "pytorch_model.bin" in refusal(folder)
    torch.save({"a": _Bomb()}, folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(folder)
    assert not Path("bomb-went-off").exists()


class _Bomb:
    def __reduce__(self):
        return (open, ("bomb-went-off", "w"))


def test_shards(folder):
    expected = seamseg.load(folder, **SMALL).raw([photo(40, 60)])[0]
    one = digest(folder)
    (folder / "model.safetensors").unlink()
    build("mask2former").save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    assert_equal(seamseg.load(folder, **SMALL).raw([photo(40, 60)])[0], expected)
    assert digest(folder) != one
    next(folder.glob("model-00002-of-*.safetensors")).unlink()
    assert "model-00002-of-" in refusal(folder)


def weights_of(file):
    return {key: value.clone() for key, value in load_file(file).items()}


def test_damaged_and_incomplete_weights(folder):
    file = folder / "model.safetensors"
    state, whole = weights_of(file), file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "truncated, damaged, or not a safetensors file" in refusal(folder)
    save_file({key: value for key, value in state.items() if "class_predictor" not in key}, file)
    message = refusal(folder)
    assert "lack 2 tensors of a Mask2FormerForUniversalSegmentation, such as class_predictor.bias" in message
    save_file({**state, "class_predictor.weight": torch.zeros(3, 32)}, file)
    wanted = "class_predictor.weight of the weights has the shape (3, 32), by the configuration it is (20, 32)"
    assert wanted in refusal(folder)
    state["class_predictor.bias"][0] = float("nan")
    save_file(state, file)
    for precision, advice in (("fp32", "are its weights damaged?"), ("bf16", "use `precision=fp32`")):
        model = seamseg.load(folder, precision=precision, **SMALL)
        with pytest.raises(SeamsegError, match=f"class_queries_logits are not finite: {re.escape(advice)}"):
            model.predict(photo(40, 60))


CONFIGURATIONS = [
    ({"auto_map": {"AutoModel": "evil.Net"}}, "comes with code of its own (auto_map), which is never run"),
    ({"num_queries": "many"}, "transformers refuses it"),
    ({"backbone_config": {"model_type": "unheard_of"}}, "transformers refuses it: unknown 'unheard_of'"),
    ({"model_type": "segformer"}, "a network of type segformer makes no panoptic maps; supported types are mask2f"),
    ({"model_type": "mask2fromer"}, "detr; did you mean 'mask2former'?"),
    ({"model_type": None}, "that states its model_type"),
    ({"model_type": "detr", "architectures": ["DetrForObjectDetection"]}, "is a DetrForObjectDetection, which makes"),
    # of classes
    ({"id2label": None, "label2id": None, "num_labels": 19}, "its configuration names no class"),
    ({"id2label": {"1": "road", "2": "car"}}, "no valid id2label"),
    ({"id2label": ["road"]}, "no valid id2label"),
]


def test_damaged_and_foreign_configurations(folder):
    config = folder / "config.json"
    whole = config.read_text()
    for changes, words in CONFIGURATIONS:
        config.write_text(whole)
        edit(config, **changes)
        assert words in refusal(folder)
    edit(config, model_type="eomt", architectures=None)
    (folder / "preprocessor_config.json").write_text('{"do_split_image": true}')
    assert "was trained for semantic segmentation" in refusal(folder)
    edit(folder / "preprocessor_config.json", do_split_image=False)
    edit(config, image_size=[64, 128])
    assert "image_size is [64, 128], not the side of a square" in refusal(folder)
    for text in (whole[:100], "[]"):
        config.write_text(text)
        assert str(config) in refusal(folder)
    config.unlink()
    assert "a network of transformers is a folder with a config.json beside them" in refusal(folder)
    config.write_text(whole)
    text = "`device=openvino`: only for exported networks; use `seamseg export` first"
    assert refusal(folder, device="openvino") == text
    file = folder / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n")
    assert refusal(folder) == f"{file}: is a Git LFS pointer: run `git lfs pull`"


def test_tokens_of_the_task(tmp_path):
    folder = save("oneformer", tmp_path / "net")
    (folder / "vocab.json").write_text("{")
    assert "tokenizer: transformers refuses it" in refusal(folder)
    (folder / "vocab.json").unlink()
    assert "holds no tokenizer" in refusal(folder)


@pytest.mark.parametrize(("family", "name"), [("mask2former", "a/net"), ("detr", "hf-hub:a/net")])
def test_a_backbone_of_the_hub_is_not_looked_for(fake_hub, tmp_path, family, name):
    folder = save(family, tmp_path / "net")
    edit(folder / "config.json", backbone=name, backbone_config=None, use_timm_backbone="hub:" in name)
    assert refusal(folder).endswith("it names a backbone that is not in the folder, which is not downloaded")
    assert fake_hub.requests == []


def test_hub(fake_hub, folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "modeling.py").write_text("raise SystemExit('run')")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle" * 1000)  # not read beside safetensors
    (folder / "preprocessor_config.json").write_text("{}")
    fake_hub.publish("someone/net", folder)
    model = seamseg.load("hf://someone/net", **SMALL)
    assert fake_hub.fetched() == {"config.json", "README.md", "preprocessor_config.json", "model.safetensors"}
    assert_equal(model.raw([photo(40, 60)])[0], seamseg.load(folder, **SMALL).raw([photo(40, 60)])[0])
    assert digest("hf://someone/net") == digest(folder)
    (folder / "model.safetensors").unlink()
    (folder / "modeling.py").unlink()
    torch.save(build("mask2former").state_dict(), folder / "pytorch_model.bin")
    fake_hub.requests.clear()
    fake_hub.publish("someone/other", folder)
    seamseg.load("hf://someone/other", **SMALL)
    assert fake_hub.fetched() == {path.name for path in folder.iterdir()}
