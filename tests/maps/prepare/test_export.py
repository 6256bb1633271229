"""Ground truth is exported to each format and read back by `prepare` without loss."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from predicting.test_exports import CLASSES, make_city
from support.source_files import segment_masks

from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata, read_metadata, write_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.check import check_dataset
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.export import export_dataset
from seamseg.maps.prepare.panoptic import prepare_panoptic
from seamseg.maps.prepare.vistas import prepare_vistas
from seamseg.utils.errors import InputError

ONE = ConversionOptions(workers=1)


def from_coco(data, out, split, back):
    path = out / "coco" / f"panoptic_{split}"
    prepare_panoptic(back, {split: (str(data / "img"), f"{path}.json", str(path))}, ONE)
    return back


def from_cityscapes(data, out, split, back):
    prepare_cityscapes(out / "cityscapes", back, ["train_extra" if split == "coarse" else split], ONE)
    return back


def from_vistas(data, out, split, back):
    prepare_vistas(
        out / "vistas", back, splits=[{"train": "training", "val": "validation"}.get(split, split)], options=ONE
    )
    return back


BACK = {"coco": from_coco, "cityscapes": from_cityscapes, "vistas": from_vistas}


@pytest.mark.parametrize(
    ("format_", "crowds"), [("coco", True), ("cityscapes", True), ("vistas", True), ("vistas", False)]
)
def test_export_and_read_back(tmp_path, format_, crowds):
    data = make_city(tmp_path / "data", crowds)
    assert export_dataset(data, tmp_path / "out", ["val"], [format_], ONE) == {"val": 3}
    back = BACK[format_](data, tmp_path / "out", "val", tmp_path / "back")
    before = segment_masks(data)
    assert before == segment_masks(back)
    assert sum(crowd for s in before.values() for _, crowd, _ in s) == 6 * crowds
    assert check_dataset(back, 1).errors == []
    old, new = read_metadata(data / "metadata.bin"), read_metadata(back / "metadata.bin")
    known = {name: (i, new.is_thing(c)) for c, (name, i) in enumerate(zip(new.categories, new.original_ids))}
    for c, (name, i) in enumerate(zip(old.categories, old.original_ids)):
        assert known[name] == (i, old.is_thing(c))
    for image in old.images:
        photo = DatasetFolder(back).image_path(image.id)
        assert photo.read_bytes() == (data / "img" / f"{image.id}.png").read_bytes()


def test_vistas_files_are_consistent(tmp_path):
    data = make_city(tmp_path / "data", crowds=False)
    export_dataset(data, tmp_path / "out", formats=["vistas", "coco"], options=ONE)
    root = tmp_path / "out" / "vistas" / "validation"
    for path in sorted((root / "labels").iterdir()):
        labels, instances = (np.array(Image.open(root / part / path.name)) for part in ("labels", "instances"))
        assert labels.dtype == np.uint8
        assert instances.dtype in (np.uint16, np.int32)  # by the version of Pillow
        assert (instances // 256 == labels).all()
        assert labels.max() == 27
        assert (labels == 27).sum() > 100
    scores = evaluate_panoptic_json(*[MapFiles(root / "panoptic" / "panoptic_2018.json", root / "panoptic")] * 2)
    assert (scores.PQ, scores.n_images) == (1, 3)
    assert [c.info.id for c in scores.per_class] == [8, 24, 25, 27]


def test_several_splits_and_their_names(tmp_path):
    data = make_city(tmp_path / "data", crowds=False)
    (data / "lst" / "coarse.txt").write_text("bonn_000001_000019\n")
    out = tmp_path / "out"
    assert export_dataset(data, out, formats=["coco", "cityscapes", "vistas"]) == {"coarse": 1, "val": 3}
    expected = ["cityscapes/gtCoarse/train_extra", "cityscapes/gtFine/val", "vistas/coarse", "vistas/validation"]
    assert all((out / name).is_dir() for name in expected)
    assert len(segment_masks(from_cityscapes(data, out, "coarse", tmp_path / "back"))) == 1
    (data / "lst" / "validation.txt").write_text("bonn_000001_000019\n")
    with pytest.raises(InputError, match="validation: two splits would be written to it"):
        export_dataset(data, tmp_path / "again", formats=["vistas"])


def make_crowded(root, count):
    for folder in ("img", "msk", "lst"):
        (root / folder).mkdir(parents=True)
    size = (30, 50)
    ids = np.zeros(size, np.uint16)
    ids.ravel()[:count] = np.arange(1, count + 1)
    Image.fromarray(ids).save(root / "msk" / "a.png")
    Image.new("RGB", size[::-1]).save(root / "img" / "a.png")
    (root / "lst" / "val.txt").write_text("a\n")
    image = ImageInfo("a", [VOID, *[3] * count], size, [0] * (count + 1))
    write_metadata(root / "metadata.bin", Metadata(**{**vars(CLASSES), "images": [image]}))
    return root


@pytest.mark.parametrize(("format_", "limit"), [("cityscapes", 1000), ("vistas", 256)])
def test_the_number_of_instances_is_limited(tmp_path, format_, limit):
    most = make_crowded(tmp_path / "most", limit)
    export_dataset(most, tmp_path / "out", formats=[format_])
    back = BACK[format_](most, tmp_path / "out", "val", tmp_path / "back")
    assert segment_masks(back) == segment_masks(most)
    with pytest.raises(InputError, match=f"image a: more than {limit} instances of label 26"):
        export_dataset(make_crowded(tmp_path / "more", limit + 1), tmp_path / "over", formats=[format_])
    assert not list((tmp_path / "over").rglob("*.png"))


def test_data_that_a_format_cannot_represent(tmp_path):
    group = replace(CLASSES, categories=["road", "sky", "person", "car-group"])
    single = make_city(tmp_path / "single", crowds=False, classes=group)
    with pytest.raises(InputError, match="a single instance of 'car-group'"):
        export_dataset(single, tmp_path / "out", formats=["vistas"], options=ONE)
    with pytest.raises(InputError, match="'car-group' is not a class of Cityscapes"):
        export_dataset(single, tmp_path / "out", formats=["cityscapes"])
    pair = replace(CLASSES, categories=["road", "sky", "car", "car-group"])
    with pytest.raises(InputError, match="'car' has crowds, but 'car-group' is another class"):
        export_dataset(make_city(tmp_path / "pair", classes=pair), tmp_path / "out", formats=["vistas"])
    full = replace(CLASSES, original_ids=[0, 1, 2, 253])
    with pytest.raises(InputError, match="more than 255 labels"):
        export_dataset(make_city(tmp_path / "full", classes=full), tmp_path / "out", formats=["vistas"])


def test_the_command(tmp_path, seamseg_main, capsys):
    data, out = make_city(tmp_path / "data"), tmp_path / "out"
    words = ("prepare", "export", data, out, "--split", "val", "--format", "coco,cityscapes")
    assert seamseg_main(*words, "--workers", "2", "--copy") == 0
    assert capsys.readouterr().out.strip() == f"{out}: 3 images of val in coco, cityscapes"
    before = {p: p.read_bytes() for p in out.rglob("*.png")}
    assert len(before) == 3 * 4
    for more, message in (
        ((), "exists already; choose another folder, or overwrite it with --force"),
        (("--split", "test"), "no split 'test'"),
        (("--format", "voc"), "choose among coco, cityscapes, vistas"),
    ):
        assert seamseg_main(*words, *more) == 2
        assert message in capsys.readouterr().err
    assert seamseg_main(*words, "--force") == 0
    assert before == {p: p.read_bytes() for p in out.rglob("*.png")}
