"""Predictions in the formats of annotation tools."""

import json

import pytest
from PIL import Image

from seamseg.maps.folder import DatasetFolder

pytestmark = pytest.mark.usefixtures("narrow")

CPU = ("--device", "cpu", "--workers", "0")


def test_formats_of_annotation_tools(micro_run, micro, tmp_path, seamseg_main, capsys):
    out = tmp_path / "out"
    assert seamseg_main("predict", micro_run, micro / "img", out, *CPU, "--format", "coco,cvat,labelstudio") == 0
    segments = sum(len(a["segments_info"]) for a in json.loads((out / "panoptic.json").read_text())["annotations"])
    for tool in ("cvat", "labelstudio"):
        words = ("prepare", tool, tmp_path / tool, "--split", "val", micro / "img", out / tool, "--workers", "1")
        assert seamseg_main(*words) == 0
        data = DatasetFolder(tmp_path / tool)
        assert data.metadata.without_images() == DatasetFolder(micro).metadata.without_images()
        assert sum(len(i.cat) - 1 - sum(i.iscrowd) for i in data.metadata.images) == segments > 0
    # a frame of a video has no address that Label Studio could show
    (tmp_path / "drive.mp4").touch()
    capsys.readouterr()
    words = ("predict", micro_run, tmp_path / "drive.mp4", tmp_path / "t", *CPU)
    assert seamseg_main(*words, "--format", "labelstudio") == 2
    assert "not frames of drive.mp4; save them as images first" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
    # its list has a name a line
    Image.new("RGB", (48, 32)).save(tmp_path / "new\nline.png")
    assert seamseg_main("predict", micro_run, tmp_path / "new\nline.png", tmp_path / "t", *CPU, "--format", "cvat") == 1
    assert "ImageSets/Segmentation has a name a line, in UTF-8" in capsys.readouterr().err
