"""The gallery: well-formed, self-contained, safe with any name, small enough to send."""

from __future__ import annotations

import base64
import io
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from seamseg.visualize import Card, write_gallery

VOID_TAGS = {"meta", "img", "br", "input", "link", "hr"}


class Page(HTMLParser):
    """Collects tags and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _photo(seed: int, shape: tuple[int, int] = (64, 128)) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize(shape[::-1], Image.Resampling.BICUBIC))


ROWS = [
    {"class": "road", "PQ": 0.91, "SQ": 0.93, "RQ": 0.98, "n": 40},
    {"class": "car & <truck>", "PQ": 0.42, "SQ": math.nan, "RQ": None, "n": 120},
]


@pytest.fixture
def page(tmp_path):
    cards = [
        Card(
            f"street {i}",
            {"photo": _photo(i), "prediction": _photo(i + 50), "ground truth": _photo(i)},
            "PQ 40.0",
        )
        for i in range(3)
    ]
    cards.append(Card('<script>alert("x")</script>', {"photo": _photo(9, (128, 64))}))
    path = tmp_path / "deep" / "index.html"
    write_gallery(path, "Toy <city>", {"PQ": "43.1", "images": "40"}, ROWS, cards)
    parsed = Page()
    parsed.feed(path.read_text(encoding="utf-8"))
    parsed.close()
    assert not parsed.open
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]
    return parsed


def test_it_asks_for_nothing(page):
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed")
        for name in ("src", "href", "srcset", "data"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", "".join(page.text))


def test_pictures_are_there_with_names_and_can_be_reached_by_key(page):
    images = [a for a in page.all("img") if "src" in a]
    assert len(images) == 10
    for image in images:
        picture = Image.open(io.BytesIO(base64.b64decode(image["src"].split(",")[1])))
        assert picture.size == (int(image["width"]), int(image["height"])) and image["alt"]
    assert len([b for b in page.all("button") if b.get("class") == "open"]) == 10
    assert all("aria-label" in b for b in page.all("button") if b.get("class") == "open")


def test_names_are_text_not_markup(page):
    assert len(page.all("script")) == 1
    text = "".join(page.text)
    assert '<script>alert("x")</script>' in text and "car & <truck>" in text and "Toy <city>" in text


def test_table_has_bars_dashes_and_percent(page):
    assert len(page.all("tr")) == 3
    styles = [a.get("style") for a in page.all("span") if a.get("class") == "bar"]
    assert styles == ["--part:91.0%", "--part:93.0%", "--part:98.0%", "--part:42.0%"]
    assert "".join(page.text).count("\u2013") == 2 and "91.0" in page.text and "120" in page.text


def test_light_dark_and_phone(page):
    style = "".join(page.text)
    assert "prefers-color-scheme: dark" in style
    assert any(a.get("name") == "viewport" for a in page.all("meta"))
    assert page.all("html")[0]["lang"] == "en"


def test_large_pictures_are_scaled_down(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (512, 1024, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(noise).reduce(8).resize((2048, 1024), Image.Resampling.BICUBIC))
    path = tmp_path / "g.html"
    write_gallery(path, "t", {}, [], [Card("a", {"photo": smooth})])
    found = re.search(r"width=(\d+) height=(\d+)", path.read_text())
    assert found is not None and found.groups() == ("640", "320")
    assert path.stat().st_size < 150_000


def test_an_empty_gallery_is_still_a_page(tmp_path):
    write_gallery(tmp_path / "g.html", "nothing", {}, [], [])
    parsed = Page()
    parsed.feed((tmp_path / "g.html").read_text())
    assert not parsed.open and not parsed.all("img") and not parsed.all("table")
