"""Weights and configurations of networks of transformers: read safely, or refused in one line."""

import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.fake_hub import fake_hub
from support.tiny_transformers import CITYSCAPES, SMALL, assert_equal, build, edit, folder, photo, refusal, save

import seamseg
from seamseg.checkpoints.model_path import digest
from seamseg.utils.errors import SeamsegError

__all__ = ["fake_hub", "folder"]
pytest.importorskip("transformers")


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


def test_digest_is_of_all_that_decides_a_result(folder):
    found = [digest(folder)]
    for name in ("config.json", "preprocessor_config.json", "own_panoptic.json", "tokenizer.json", "README.md"):
        with open(folder / name, "a") as file:
            file.write(" ")
        found.append(digest(folder))
    assert len({*found}) == len(found) - 1, "but not the card"


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
    index = folder / "model.safetensors.index.json"
    edit(index, weight_map={"a": "../model.safetensors"})
    assert "is not a file of weights beside it" in refusal(folder)
    edit(index, weight_map={})
    assert "lists no files of weights" in refusal(folder)


def weights_of(file):
    """Copies: the library maps the file into memory."""
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
    ({"hidden_dim": 1 << 15, "encoder_layers": 4}, "is it the configuration of another network?"),
    ({"num_queries": "many"}, "transformers refuses it"),
    ({"backbone_config": {"model_type": "unheard_of"}}, "transformers refuses it: unknown 'unheard_of'"),
    ({"model_type": "segformer"}, "a network of type segformer makes no panoptic maps; supported types are mask2f"),
    ({"model_type": "mask2fromer"}, "detr; did you mean 'mask2former'?"),
    ({"model_type": None}, "states no model_type"),
    (
        {"model_type": "detr", "architectures": ["DetrForObjectDetection"]},
        "is a DetrForObjectDetection, which makes no",
    ),
    # of classes
    ({"id2label": None, "label2id": None, "num_labels": 19}, "its configuration names no class"),
    ({"id2label": dict(enumerate([*CITYSCAPES[:-1], "tricycle"]))}, "most are those of cityscapes, but it has 'tri"),
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
    assert refusal(config) == f"{config}: is a file of a network of transformers: give the folder {folder}"
    config.unlink()
    assert "a network of transformers is a folder with config.json beside them" in refusal(folder)
    config.write_text(whole)
    text = "`device=openvino`: only for exported networks; use `seamseg export` first"
    assert refusal(folder, device="openvino") == text
    file = folder / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n")
    assert refusal(folder) == f"{file}: is a Git LFS pointer: run `git lfs pull`"


def test_misspelt_keys(folder, capsys):
    edit(folder / "config.json", num_querys=5, an_older_key=1)
    seamseg.load(folder, device="cpu")
    said = "unknown key 'num_querys', which has no effect: is it 'num_queries'?\n"
    assert capsys.readouterr().err == f"seamseg: warning: {folder / 'config.json'}: {said}"


def test_tokens_of_the_task(tmp_path):
    folder = save("oneformer", tmp_path / "net")
    (folder / "vocab.json").write_text("{")
    assert "tokenizer: transformers refuses it" in refusal(folder)
    (folder / "vocab.json").unlink()
    assert "holds no tokenizer" in refusal(folder)
    for value in (10**10, "many", 0):
        edit(folder / "config.json", task_seq_len=value)
        assert f"task_seq_len is {value}, not a number of tokens" in refusal(folder)


def test_names_of_other_tasks(folder, tmp_path, capsys):
    """A warning: semantic and instance networks have the configuration of panoptic ones."""
    for name, base, warned in (
        ("my_instance_v2", None, "my_instance_v2"),
        ("net", "someone/swin-semantic-large", "swin-semantic-large"),
        ("net-panoptic", "someone/net-semantic", ""),
        ("semantic-photos/net", None, ""),
    ):
        other = shutil.copytree(folder, tmp_path / "other" / name, dirs_exist_ok=True)
        edit(other / "config.json", _name_or_path=base)
        capsys.readouterr()
        seamseg.load(other, device="cpu")
        error = capsys.readouterr().err
        assert error.count("\n") == bool(warned), name
        assert not warned or f" segmentation by the name '{warned}': its panoptic maps will be poor" in error


def test_a_configuration_of_more_layers(tmp_path):
    """Not one is built: a network of so many would take all memory and hours."""
    folder = save("eomt", tmp_path / "net")
    for key in ("num_hidden_layers", "num_upscale_blocks"):
        edit(folder / "config.json", **{key: 10**9})
        assert "is it the configuration of another network?" in refusal(folder)


@pytest.mark.parametrize(
    ("option", "value"),
    [("tta", "flip"), ("compile", True), ("pad_to", 32), ("config", "x"), ("overrides", ["general.kind=semantic"])],
)
def test_options_without_effect(folder, option, value):
    assert refusal(folder, **{option: value}).startswith(f"`{option}")


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


def test_hub_without_safetensors(fake_hub, tmp_path):
    folder = save("oneformer", tmp_path / "net")
    (folder / "model.safetensors").unlink()
    torch.save(build("oneformer").state_dict(), folder / "pytorch_model.bin")
    fake_hub.publish("someone/net", folder)
    seamseg.load("hf://someone/net", **SMALL)
    assert fake_hub.fetched() == {path.name for path in folder.iterdir()}
    assert "the repository has no such revision" in refusal("hf://someone/net@v2")
