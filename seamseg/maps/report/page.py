"""Self-contained HTML pages: markup with one style and one script, under a content security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from seamseg.utils.errors import printable

SHARED = "seamseg.maps.report"
"""Package of the assets that pages share."""

_FIELD = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Page:
    """The assets of a page, from the folder `assets` of a package, or if it has none of that name of :data:`SHARED`.

    `scripts` and `styles` are files that are joined in this order, without their endings; `connects` lets the page send
    requests to the server it comes from.
    """

    package: str
    scripts: Sequence[str]
    styles: Sequence[str] = ("style",)
    connects: bool = False


def page_frame(title: str, page: Page, **texts: str) -> tuple[str, str]:
    """Build a page before and after its data; `texts` replace the fields of its markup that have their names.

    Nothing is loaded from outside the page: its content security policy allows one style and one script, by their
    hashes, and images of the page itself.
    """
    style = "\n".join(_asset(page, f"{name}.css") for name in page.styles)
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(page, f"{name}.js") for name in page.scripts) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data: blob:; "
        f"{'connect-src ' + repr('self') + '; ' if page.connects else ''}base-uri 'none'; form-action 'none'"
    )
    fields = {name: html.escape(printable(text)) for name, text in {"policy": policy, "title": title, **texts}.items()}
    fields |= {"style": style, "script": script}
    before, _, after = (_asset(page, "head.html") + _asset(page, "page.html")).partition("{{data}}")
    # in one pass: fields in a title are text
    return _FIELD.sub(lambda found: fields[found[1]], before), _FIELD.sub(lambda found: fields[found[1]], after)


def _asset(page: Page, name: str) -> str:
    own = resources.files(page.package) / "assets" / name
    file = own if own.is_file() else resources.files(SHARED) / "assets" / name
    return file.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
