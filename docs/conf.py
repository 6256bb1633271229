"""Sphinx configuration: Markdown pages by MyST, the API reference by autodoc."""

from __future__ import annotations

import inspect
import pkgutil
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from seamseg.version import __version__  # noqa: E402

project = "seamseg"
author = "the seamseg authors"
copyright = "the seamseg authors, BSD-3-Clause"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"seamseg {release}"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# numpy docstrings; entries have the form "name : description", so the text after the colon is not a type to look up
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "code"

# Every internal reference must resolve. Not looked up: names of other libraries (the build needs no network), private
# names, type variables, and modules outside the public reference that occur in annotations.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!seamseg\.).*"),
    ("py:.*", r"seamseg\.(.*\.)?(_.*|[A-Z])"),
    # type variables
    ("py:.*", r"seamseg\.(models\.(folding|quantised)|deploy\.integers)\.(Net|Module)"),
    ("py:.*", r"seamseg\.(classification|cli|doctor|report|serving|toy_city|demo|utils)\..*"),
]
# attributes of two classes may share a name; numpy docstrings refer to them without the class
suppress_warnings = ["ref.python"]

PUBLIC = (
    "checkpoints", "components", "config", "data", "deploy", "evaluation", "formats", "fusion", "idmaps", "inference",
    "inplace_abn", "models", "ops", "panoptic_map", "predict", "predictions", "prepare", "structures", "testing",
    "training", "validation", "visualize",
)  # fmt: skip
"""The rooms of the API reference."""

ROOT_PAGES = {
    "CONTRIBUTING.md": "/project/contributing.md",
    "SECURITY.md": "/project/security.md",
    "CHANGELOG.md": "/project/changelog.md",
    "benchmarks/results/README.md": "/project/gpu_status.md",
    "README.md": "/index.md",
}
"""Files of the repository root and the pages of the site that contain them."""


def write_api_pages() -> None:
    """Write one page per room with all its public modules, so that the reference follows the code."""
    folder = DOCS / "reference" / "api" / "_generated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "seamseg.md").write_text(_page("seamseg", ["seamseg"]), encoding="utf-8")
    for room in PUBLIC:
        name = f"seamseg.{room}"
        module = import_module(name)
        names = [name]
        if hasattr(module, "__path__"):
            names += [found.name for found in pkgutil.walk_packages(module.__path__, f"{name}.")]
        public = [n for n in names if not any(part.startswith("_") for part in n.split("."))]
        (folder / f"{name}.md").write_text(_page(name, public), encoding="utf-8")


def _page(title: str, modules: list[str]) -> str:
    parts = [f"# {title}"]
    for module in modules:
        heading = [] if module == title else [f"## {module}"]
        options = "\n   ".join((f".. automodule:: {module}", ":members:", ":ignore-module-all:", ":show-inheritance:"))
        parts += [*heading, f"```{{eval-rst}}\n{options}\n```"]
    return "\n\n".join(parts) + "\n"


def mark_code(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Turn the single backticks of docstrings into literals, which may contain any character."""
    if inspect.isbuiltin(obj):
        # of another library, with its own markup
        lines.clear()
    for number, line in enumerate(lines):
        marked = re.sub(r"(?<![:`\w])`([^`]+)`(?!`)(?=(\w?))", _literal, line)
        lines[number] = marked


def _literal(match: re.Match[str]) -> str:
    return f"``{match[1]}``" + ("\\ " if match[2] else "")


def link_root_files(app, docname, source) -> None:  # type: ignore[no-untyped-def]
    """Fill the pages of ROOT_PAGES with the files of the repository, and point links to such files at the pages."""
    original = next(
        (path for path, page in ROOT_PAGES.items() if page == f"/{docname}.md" and docname != "index"), None
    )
    if original is not None:
        app.env.note_dependency(str(ROOT / original))
        source[0] = (ROOT / original).read_text(encoding="utf-8")
        source[0] = re.sub(r"\]\(docs/", "](/", source[0])
    for path, page in ROOT_PAGES.items():
        # the start page has none of the README's headings
        tail = r"(?:#[^)]*)?(?=\))" if page == "/index.md" else r"(?=[)#])"
        source[0] = re.sub(rf"\]\((?:\.\./)*{re.escape(path)}{tail}", f"]({page}", source[0])


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the hooks."""
    write_api_pages()
    # before napoleon, which builds on the marked text
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("source-read", link_root_files)
