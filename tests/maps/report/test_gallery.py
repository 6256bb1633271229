"""The report's page of a folder of predictions."""

import base64
import io
import json

import pytest
from PIL import Image
from support.browsers import blocks
from support.onnx_scenes import record, scene, write_network

from seamseg.cli.main import main
from seamseg.maps.report import is_gallery, write_gallery
from seamseg.utils.errors import InputError


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Two images, one of them without its overlay by now, and one that cannot be read."""
    root = tmp_path_factory.mktemp("gallery")
    network = write_network(root / "net.onnx", record())
    (root / "photos").mkdir()
    Image.fromarray(scene((90, 140))).save(root / "photos" / "a<b>.png")
    Image.fromarray(scene((90, 140))[:30]).save(root / "photos" / "c.png")
    (root / "photos" / "d.png").write_bytes(b"")
    assert main(["predict", str(network), str(root / "photos"), str(root / "out"), "--format", "json,overlay"]) == 1
    (root / "out" / "c.jpg").unlink()
    return root / "out"


def test_the_page_has_overlays_and_counts(predicted, capsys):
    assert main(["report", str(predicted)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"open {predicted / 'report.html'} (")
    assert captured.err.splitlines()[-1].endswith("1 of 2 images are missing or unreadable: their panels are on grey")
    found = blocks(predicted / "report.html")
    (summary,) = found["summary"]
    lines = [json.loads(line) for line in (predicted / "predictions.jsonl").read_text().splitlines()[1:]]
    counts = {line["name"]: line["segments"] for line in lines if line["status"] == "ok"}
    names = [one["name"] for one in summary["classes"]]
    shown = {one["name"]: {names[c]: n for c, n in one["classes"][0]} for one in summary["images"]}
    assert shown == counts
    assert [*shown] == ["a<b>", "c"]
    assert (summary["scored"], summary["failed"], summary["n_images"], summary["titles"]) == (False, [1], [2], ["out"])
    for one in summary["classes"]:
        has = [image[one["name"]] for image in counts.values() if one["name"] in image]
        assert (one["Images"], one["Found"]) == ([len(has)], [sum(has)])
    first, second = found["image"]
    assert Image.open(io.BytesIO(base64.b64decode(first["photo"]))).size == (first["width"], first["height"])
    assert (first["width"], first["height"], second["photo"]) == (140, 90, None)


def test_other_content(predicted, tmp_path):
    manifest = tmp_path / "predictions.jsonl"
    lines = (predicted / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    ok = next(line for line in lines if b'"ok"' in line)
    manifest.write_bytes(lines[0] + ok + b'{"torn')
    assert is_gallery(tmp_path)
    assert write_gallery(tmp_path / "a.html", tmp_path).without_image == 1
    manifest.write_bytes(lines[0] + ok + b'{"name": "a"}\n')
    with pytest.raises(InputError, match=r"predictions\.jsonl, line 3: not a line of `seamseg predict`"):
        write_gallery(tmp_path / "a.html", tmp_path)
    manifest.write_bytes(lines[0] + ok.replace(b".jpg", b".png"))
    with pytest.raises(InputError, match="holds no overlay; predict with --format overlay"):
        write_gallery(tmp_path / "a.html", tmp_path)
    (tmp_path / "evaluation.json").touch()
    assert not is_gallery(tmp_path)
