"""Pages in a headless browser, names that must stay text in them, and the data of report pages."""

import base64
import io
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

HOSTILE = {
    "script": "</script><script>window.taken = 1; alert(1)</script>",
    "image": """"'><img src=http://127.0.0.1:9/x onerror="window.taken = 1; alert(1)">""",
    "url": "javascript:alert(1)",
    "style": "</style></title></textarea><svg onload=alert(1)><!--",
    "template": "{{data}}{{title}}{{style}}{{script}}{{limit}}${alert(1)}",
    "lines": "a\u2028b\u2029c\nd\r\ne\x85f",
    "reversed": "\u202egnp.exe \u05d0\u05d1 \u2067\u2069\u2069\u202e",
    "word": "x" * 10_000,
    "words": "many words " * 900,
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f697",
    "control": "nul\0bell\x07esc\x1b[31mdel\x7f",
}

PHONE = {"width": 390, "height": 844}

WIDE = """() => [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
    .filter((e) => !e.closest(".scroll")).map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium or Chrome of the system, or that of `playwright install`."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need the package playwright")
    with playwright.sync_playwright() as started:
        names = "chromium", "chromium-browser", "google-chrome", "chrome"
        path = next(filter(None, map(shutil.which, names)), started.chromium.executable_path)
        if not Path(path).is_file():
            pytest.skip("no Chromium or Chrome is installed: the tests in a browser are left out")
        opened = started.chromium.launch(executable_path=path)
        yield opened
        opened.close()


@contextmanager
def watched_pages(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages by their URL, with options of the context, until their scripts have run.

    Fails in the end if a page has opened a dialog, written to the console, or requested anything but itself and what is
    below it on its server.
    """
    contexts, messages, requests, opened = [], [], [], []

    def go(url: str, **options: Any) -> Any:
        opened.append(url)
        contexts.append(browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    yield go
    for context in contexts:
        context.close()
    # the browser reports responses above 399, which some tests are about
    assert (errors := [m for m in messages if "Failed to load resource" not in m]) == [], errors
    assert [url for url in requests if not url.startswith((*opened, "data:", "blob:"))] == []
    files = [[url for url in urls if url.startswith("file:")] for urls in (requests, opened)]
    assert files[0] == files[1]


def canvas_pixels(canvas: Any) -> np.ndarray:
    """Return the colours of a canvas, H x W x 3."""
    data = canvas.evaluate("canvas => canvas.toDataURL()")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data.split(",")[1]))).convert("RGB"))


def check_layout(page: Any) -> None:
    """Check that a page shows no name beyond the window and ran none as a script."""
    assert page.evaluate("window.taken") is None
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(WIDE) == []


BLOCK = re.compile(r'<script type="application/json" class="(\w+)">(.*?)</script>', re.S)


def blocks(page: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        found.setdefault(kind, []).append(json.loads(text))
    return found


def decode_index_map(text: str, height: int, width: int, segments: int) -> np.ndarray:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8 if segments <= 255 else "<u2")
    return np.bitwise_xor.accumulate(raw.reshape(height, width), axis=0)
