"""Trained models as a published zip, a run folder or a bare snapshot, valid and invalid."""

import re
import struct
import zipfile
from dataclasses import replace

import pytest
import torch
import umsgpack
from support.bombs import MIB, state_sizes, zeros_zip
from support.small_models import save_snapshot

from seamseg.checkpoints.bundle import load_built, open_model, weights_file
from seamseg.checkpoints.model_path import VISTAS_MD5
from seamseg.checkpoints.snapshot import Snapshot, load_snapshot
from seamseg.maps.formats.metadata import Metadata, metadata_header, pack_metadata, parse_metadata, write_metadata
from seamseg.utils.errors import InputError

CONFIG = "[general]\nmin_stuff_area = 16\n"
CLASSES = Metadata(2, 1, ["sky", "road", "car"], [(1, 2, 3), (4, 5, 6), (7, 8, 9)], [23, 7, 26])


def parts(num_stuff=2, num_thing=1):
    classes = num_stuff + num_thing
    return {
        "body": {"backbone.mod1.conv1.weight": torch.zeros(64, 3, 7, 7)},
        "rpn_head": {"conv1.weight": torch.zeros(1)},
        "roi_head": {"roi_cls.weight": torch.zeros(num_thing + 1, 8), "roi_msk.weight": torch.zeros(num_thing, 8)},
        "sem_head": {"conv_sem.weight": torch.zeros(classes, 8)},
    }


def write_snapshot(path, config=CONFIG, metadata=CLASSES, state=None):
    header = None if metadata is None else metadata_header(metadata)
    save_snapshot(path, Snapshot(config, dict(state or parts()), {"epoch": 1}, header))
    return path


def snapshot_bytes(tmp_path, **options):
    return write_snapshot(tmp_path / "bytes.tar", **options).read_bytes()


def published(tmp_path, prefix="", **changes):
    """A published model; `changes` replace or, with None, leave out its `tar`, `ini` and `bin`."""
    members = {
        "tar": snapshot_bytes(tmp_path, metadata=None, config=""),
        "ini": CONFIG.encode(),
        "bin": pack_metadata(CLASSES),
    }
    members = {kind: data for kind, data in {**members, **changes}.items() if data is not None}
    names = {"tar": "seamseg_r50.tar", "ini": "config.ini", "bin": "metadata.bin"}
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for kind, data in members.items():
            archive.writestr(prefix + names[kind], data)
    return tmp_path / "model.zip"


def refusal(path, **options):
    with pytest.raises(InputError) as error:
        open_model(path, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def assert_whole(path, **options):
    model = open_model(path, **options)
    assert model.config.general.min_stuff_area == 16
    assert replace(model.metadata, images=[]) == CLASSES
    assert set(model.snapshot.state_dict) == {"body", "rpn_head", "roi_head", "sem_head"}
    assert str(path) in model.name


@pytest.mark.parametrize("prefix", ["", "a/b/", "../"])
def test_published_zip(tmp_path, prefix):
    """Also one made on a Mac; no path of it reaches the disk."""
    (tmp_path / "inner").mkdir()
    path = published(tmp_path / "inner", prefix)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._seamseg_r50.tar", b"resource fork")
    before = sorted(tmp_path.rglob("*"))
    assert_whole(path)
    assert {*load_snapshot(*weights_file(path)).state_dict} == {*parts()}, "to train on from it"
    assert sorted(tmp_path.rglob("*")) == before


def test_run_folder_prefers_the_best_snapshot(tmp_path):
    write_snapshot(tmp_path / "model_last.pth.tar", state={**parts(), "optimizer": {}})
    assert {*open_model(tmp_path).snapshot.state_dict} == {*parts(), "optimizer"}
    write_snapshot(tmp_path / "model_best.pth.tar")
    (tmp_path / "config.ini").write_text(CONFIG)
    write_metadata(tmp_path / "metadata.bin", CLASSES)
    assert_whole(tmp_path)
    assert open_model(tmp_path).name.endswith("model_best.pth.tar")


def test_a_bare_snapshot_of_the_original(tmp_path):
    path = write_snapshot(tmp_path / "model.pth.tar", metadata=None)
    write_metadata(tmp_path / "metadata.bin", CLASSES)
    (tmp_path / "my.ini").write_text(CONFIG)
    assert_whole(path, meta=tmp_path / "metadata.bin")
    assert_whole(path, meta=tmp_path)
    assert_whole(path, meta=tmp_path / "metadata.bin", config=tmp_path / "my.ini")


def test_overrides_and_another_config(tmp_path):
    path = published(tmp_path)
    assert open_model(path, overrides=["general.min_stuff_area=7"]).config.general.min_stuff_area == 7
    (tmp_path / "my.ini").write_text("[general]\nmin_stuff_area = 9\n")
    model = open_model(path, tmp_path / "my.ini", overrides=["general.score_threshold=.25"])
    assert (model.config.general.min_stuff_area, model.config.general.score_threshold) == (9, 0.25)


def test_the_config_beside_a_snapshot_wins_over_the_one_inside(tmp_path):
    inside = snapshot_bytes(tmp_path, config="[general]\nmin_stuff_area = 99\n")
    assert open_model(published(tmp_path, tar=inside)).config.general.min_stuff_area == 16
    assert open_model(published(tmp_path, tar=inside, ini=None)).config.general.min_stuff_area == 99


def test_missing(tmp_path):
    message = refusal(tmp_path / "model.zip")
    assert message.startswith(f"{tmp_path / 'model.zip'}: no such model; MODEL is a published .zip")
    assert "run folder" in message
    assert "Vistas" not in message
    # the name of the published one: where it is, and nothing that is not known
    message = refusal(tmp_path / "seamseg_r50_vistas.zip")
    assert "README of the original project, github.com/mapillary/seamseg" in message
    assert VISTAS_MD5 in message
    assert "\n" not in message


def test_folder_that_is_not_a_run_folder(tmp_path):
    assert "not a run folder: it holds neither model_best.pth.tar nor model_last.pth.tar" in refusal(tmp_path)
    (tmp_path / "a.JPG").touch()
    assert refusal(tmp_path).endswith("; it holds images: the model comes before them")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"config": ""}, "holds no configuration; give its INI file with `config=FILE`"),
        ({"metadata": None}, "holds no classes; give metadata.bin with `meta=FILE`"),
        ({"state": {"body": {}}}, "has no rpn_head, roi_head: pre-trained weights, not a whole network"),
        ({"state": parts(3, 1)}, "was trained on 4 classes, the metadata lists 3; use the metadata.bin it was trained"),
        ({"state": parts(1, 2)}, "was trained on 2 thing classes, the metadata lists 1"),
        # networks that no memory holds
        ({"config": "[fpn]\nout_channels = 1000000000"}, "out_channels = 1000000000: expected a value from 1 to 16384"),
        ({"config": f"[rpn]\nanchor_ratios = {(1,) * 1000}"}, "expected at most 64 values, got 1000"),
        ({"config": f"[rpn]\nanchor_ratios = {(1,) * 30000}"}, "...: expected at most 65536 characters, got 90000"),
        ({"config": f"[scheduler]\nparams = {'[' * 90}"}, "[scheduler] params = [[["),
        ({"config": '[body]\nout_channels = {"mod1": 10000000}'}, '{"mod1": 10000000}: expected at most 16384'),
    ],
)
def test_a_snapshot_that_lacks_something_or_is_of_an_absurd_network(tmp_path, options, expected):
    path = write_snapshot(tmp_path / "model.pth.tar", **options)
    message = refusal(path)
    assert expected in message
    assert str(path) in message
    assert len(message) < 500


def test_a_snapshot_of_another_task(tmp_path):
    state = parts()
    del state["sem_head"]
    path = write_snapshot(tmp_path / "seg.tar", config="[optimizer]\nloss_weights = (1,1,1,1,1)", state=state)
    panoptic = ["general.kind=panoptic", "optimizer.loss_weights=(1,1,1,1,1,1)"]
    assert refusal(path, overrides=panoptic).endswith("seg.tar: is a model for instance_seg, not for panoptic")
    assert open_model(path).config.general.kind == "instance_seg"
    del state["roi_head"]["roi_msk.weight"]
    path = write_snapshot(tmp_path / "det.tar", config="[optimizer]\nloss_weights = (1,1,1,1)", state=state)
    assert refusal(path, overrides=panoptic).endswith("det.tar: is a model for detection, not for panoptic")
    assert open_model(path).config.general.kind == "detection"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tar": None}, ": this zip holds no *.tar snapshot: it is not a published model"),
        ({"tar": b"PK..."}, ":seamseg_r50.tar: a truncated or damaged snapshot; copy it again"),
        ({"bin": pack_metadata(CLASSES)[:-7]}, ":metadata.bin: not a metadata file"),
        ({"bin": None}, "give metadata.bin with `meta=FILE`"),
        ({"ini": b"[roi]\nnum_sampels = 3\n"}, "unknown key 'num_sampels' in [roi]; did you mean 'num_samples'?"),
        ({"ini": b"\xff\xfe\x00"}, "config.ini: cannot be read as a configuration: line 1 is not UTF-16 text; save"),
    ],
)
def test_a_wrong_file_in_a_zip_is_named(tmp_path, changes, expected):
    message = refusal(published(tmp_path, **changes))
    assert str(tmp_path / "model.zip") in message
    assert expected in message


def test_a_damaged_zip_and_one_with_two_snapshots(tmp_path):
    path = published(tmp_path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.tar", b"")
    assert "holds 2 files *.tar (seamseg_r50.tar, other.tar), expected one" in refusal(path)
    data[2000] ^= 0xFF
    path.write_bytes(data)
    assert "damaged or unreadable zip (Bad CRC-32" in refusal(path)


def test_zips_of_zeros(tmp_path):
    tar, ini = snapshot_bytes(tmp_path), b"[general]\n"
    path = zeros_zip(tmp_path / "model.zip", {"config.ini": 2}, model__tar=tar)
    assert "the limit of a configuration" in refusal(path)
    zeros_zip(path, {"model.tar": 48}, config__ini=ini)
    assert "the limit is 50 times" in refusal(path)
    assert re.search(r"unreadable zip \(.* states a packed size of", refusal(state_sizes(path, 48 * MIB, 5 * MIB)))


def test_text_fields_with_other_types(tmp_path):
    path = tmp_path / "model.pth.tar"
    deep = ["x"]
    for _ in range(40):
        deep = [deep, deep]  # of 40 lists a text of a terabyte
    torch.save({"config": deep, "state_dict": parts()}, path)
    assert refusal(path).endswith("its 'config' is not text but a list")
    header = {**metadata_header(CLASSES), "categories": [deep] * 3}
    save_snapshot(path, Snapshot(CONFIG, parts(), {}, header))
    assert "not a metadata file: a category is a list, expected text" in refusal(path)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x91" * 5000, "byte 0x91 instead of the start of a map"),
        (b"\x81\xa4meta" + b"\x91" * 5000 + b"\0", "RecursionError"),
        (b"\x81\xa4meta\xdd\xff\xff\xff\xff", "InsufficientDataException"),
        (b"\x81\xa4meta\xdb\xff\xff\xff\xff", "an entry is larger than 256 KiB"),
        # empty lists, which take 56 bytes each in memory
        (b"\x81\xa6images\x91\xdd" + struct.pack(">I", 1 << 20) + b"\x90" * (1 << 20), "larger than 256 KiB"),
        (umsgpack.packb({"meta": {**metadata_header(CLASSES), "num_thing": 10**9}}), "must be 1 to 255"),
    ],
)
def test_odd_metadata(data, expected):
    with pytest.raises(InputError, match=rf"^m\.bin: .*{re.escape(expected)}"):
        parse_metadata(data, "m.bin")


def test_a_lack_of_memory_is_no_bad_input():
    def build():
        with torch.device("cpu"):
            return torch.nn.Linear(10**8, 10**8)

    with pytest.raises(RuntimeError, match="allocate"):
        load_built(build, Snapshot("", {"body": {}}, {}), "model")
