"""The report's page of a folder of predictions."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.browsers import blocks, watched_pages
from support.onnx_scenes import record, scene, write_network

from seamseg.cli.main import main
from seamseg.maps.report import is_gallery, write_gallery
from seamseg.utils.errors import InputError


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_the_page_has_overlays_and_counts(predicted: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_page_in_a_browser(predicted: Path, tmp_path: Path, browser: Any) -> None:
    write_gallery(tmp_path / "a.html", predicted)
    with watched_pages(browser) as go:
        page = go((tmp_path / "a.html").as_uri())
        assert page.locator(".card h3").all_inner_texts() == ["a<b>", "c"]
        assert page.locator("#sort option").all_inner_texts() == ["name", "most first", "fewest first"]
        assert [page.locator(f"#{name}").is_hidden() for name in ("confusion", "distributions", "views")] == [True] * 3
        (summary,) = blocks(tmp_path / "a.html")["summary"]
        rows = [[one["name"], str(one["Images"][0]), str(one["Found"][0])] for one in summary["classes"]]
        assert [row.split() for row in page.locator("#class-table tbody tr").all_inner_texts()] == rows
        page.locator(".card .open").first.click()
        page.wait_for_selector("#viewer[data-shown]")
        assert page.locator("#viewer-segments li").count() == len(summary["images"][0]["classes"][0])


def test_other_content(predicted: Path, tmp_path: Path) -> None:
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
