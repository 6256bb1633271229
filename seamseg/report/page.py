"""The frame of the page: markup, style and script, and how data is put between them safely."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

SCRIPTS = (
    "elements", "format", "colours", "data", "tooltip", "theme", "headline", "table", "charts", "confusion",
    "errors", "paint", "panel", "filters", "cards", "segments", "viewer", "start",
)  # fmt: skip
"""The script files in the order in which they are joined; each has one idea."""


def frame(title: str) -> tuple[str, str]:
    """The page up to the data, and from the data on.

    Nothing that is loaded or run is outside the page: the policy names the hashes of its one style and one script, and
    pictures may come from the page itself only.
    """
    style = _asset("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(f"script_{name}.js") for name in SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    before, _, after = _asset("page.html").partition("{{data}}")
    before = before.replace("{{policy}}", html.escape(policy)).replace("{{style}}", style)
    return before.replace("{{title}}", html.escape(title)), after.replace("{{script}}", script)


def block(kind: str, content: Any) -> Iterator[str]:
    """A block of inert JSON, which the script looks up by its class."""
    yield f'<script type="application/json" class="{kind}">'
    # no `<` in it, so that nothing in a name can end the block or begin a comment
    yield json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    yield "</script>\n"


def _asset(name: str) -> str:
    return (resources.files("seamseg.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
