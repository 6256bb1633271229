"""Sphinx configuration: Markdown pages by MyST, the API reference by autodoc."""

from __future__ import annotations

import inspect
import pkgutil
import re
import shutil
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Union

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
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"seamseg {release}"
html_favicon = "_static/favicon.svg"
html_search_scorer = str(DOCS / "_static" / "scorer.js")
# commands and code only: outputs have the language "output"
copybutton_selector = "div:not(.highlight-output) > div.highlight > pre"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# these take gigabytes, and the reference does not need them
autodoc_mock_imports = ["torch", "torchvision", "onnx", "onnxruntime", "onnxscript"]

# numpy docstrings, see describe_fields
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
    ("py:.*", r"seamseg\..*\.(Kind|Made|Module|Net)"),
    ("py:.*", r"seamseg\.(cli|demo|extensions|utils)\..*"),
    ("py:.*", r"seamseg\.(contrib\.(classification|recipes|serving)|maps\.(report|toy_city))\..*"),
]
# attributes of two classes may share a name; numpy docstrings refer to them without the class
suppress_warnings = ["ref.python"]

PUBLIC = (
    "checkpoints", "components", "config", "contrib.deploy", "contrib.exported", "contrib.foreign", "contrib.ray",
    "data", "fusion", "inference", "inplace_abn", "maps.evaluation", "maps.folder", "maps.formats", "maps.idmaps",
    "maps.images", "maps.metrics_file", "maps.panoptic_map", "maps.pasting", "maps.predictions", "maps.prepare",
    "maps.visualize", "models", "ops", "predicting", "results", "structures", "testing", "training", "validation",
)  # fmt: skip
"""The packages of the API reference."""

ROOT_PAGES = {
    "CONTRIBUTING.md": "/project/contributing.md",
    "SECURITY.md": "/project/security.md",
    "CHANGELOG.md": "/project/changelog.md",
    "benchmarks/results/README.md": "/project/gpu_status.md",
    "README.md": "/index.md",
}
"""Files of the repository root and the pages of the site that contain them."""


SEARCHES = {
    "how-to/python": ("train from Python", "evaluate from Python", "predict from Python", "notebook"),
    "how-to/extend": (
        "custom loss",
        "custom head",
        "custom metric",
        "custom optimizer",
        "custom callback",
        "wandb",
        "MLflow",
    ),
    "how-to/extend_data": ("custom dataset", "custom data set", "custom augmentation"),
    "how-to/monitor": ("progress", "log", "TensorBoard", "metrics.jsonl"),
    "how-to/train_distributed": ("multi-GPU", "DDP", "torchrun"),
    "how-to/resume": ("checkpoint", "resume"),
    "how-to/deploy": ("ONNX", "OpenVINO"),
    "how-to/aotinductor": ("C++", "AOTInductor"),
    "how-to/foreign_networks": ("Mask2Former", "OneFormer", "EoMT", "DETR"),
    "how-to/train": ("learning rate", "batch size", "accumulation", "fine-tune"),
    "how-to/reproduce": ("learning rate", "milestones", "fewer GPUs"),
    "how-to/troubleshooting": ("error", "out of memory", "slow"),
    "how-to/predict": ("video", "inference"),
    "how-to/prepare_data": ("YOLO", "labelme", "own data"),
    "how-to/serve": ("Docker", "REST", "CORS"),
    "reference/hardware": ("GPU", "requirements", "Windows", "macOS"),
    "how-to/migrate": ("original", "differences from the original"),
}
"""Index entries, which the search of the site ranks first, for words that the title of the page does not have."""


def write_api_pages() -> None:
    """Write one page per package with all its public modules, so that the reference follows the code."""
    folder = DOCS / "reference" / "api" / "_generated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "seamseg.md").write_text(_page("seamseg", ["seamseg"]), encoding="utf-8")
    for package in PUBLIC:
        name = f"seamseg.{package}"
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
        # what these export is defined in other modules, some of them private
        own = ":imported-members:" if module in ("seamseg", "seamseg.components") else ":ignore-module-all:"
        options = "\n   ".join((f".. automodule:: {module}", ":members:", own, ":show-inheritance:"))
        parts += [*heading, f"```{{eval-rst}}\n{options}\n```"]
    return "\n\n".join(parts) + "\n"


ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.*)")
"""An entry of a section of a docstring: names and description."""


def describe_fields(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Put the description of `name : description` on its own line: napoleon takes what follows a name for a type."""
    heads = [n for n, line in enumerate(lines[1:]) if line.strip("-") == "" and len(line) >= 3 and lines[n].strip()]
    for start, end in reversed(list(zip(heads, [*heads[1:], len(lines)], strict=False))):
        title, body = lines[start].strip(), lines[start + 2 : end]
        if title == "Returns" and not any(ENTRY.match(line) or line.startswith(" ") for line in body):
            # prose without a name or a type
            lines[start:end] = ["", "", ":returns: " + body[0], *(f"    {line}" for line in body[1:]), ""]
        elif title in ("Parameters", "Attributes", "Returns"):
            lines[start + 2 : end] = _entries(_one_by_one(body) if title == "Attributes" else body)


def _one_by_one(body: list[str]) -> list[str]:
    """Repeat an entry about several attributes for each of them, which napoleon takes for a name and its type."""
    entries: list[list[str]] = []
    for line in body:
        if ENTRY.match(line) or not entries:
            entries.append([line])
        else:
            entries[-1].append(line)
    found: list[str] = []
    for first, *more in entries:
        entry = ENTRY.match(first)
        for start in [f"{name} : {entry[2]}" for name in entry[1].split(", ")] if entry else [first]:
            found += [start, *more]
    return found


def _entries(body: list[str]) -> list[str]:
    found: list[str] = []
    for line in body:
        entry = ENTRY.match(line)
        if not entry and line and not line.startswith(" ") and found[-1:] == [""]:
            # a paragraph after the entries: two empty lines end a section
            found.append("")
        found += [entry[1], f"    {entry[2]}"] if entry else [line]
    return found


def mark_code(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Turn the single backticks of docstrings into literals, which may contain any character."""
    if inspect.isbuiltin(obj):
        # of another library, with its own markup
        lines.clear()
    for number, line in enumerate(lines):
        marked = re.sub(r"(?<![:`\w])`([^`]+)`(?!`)(?=(\w?))", _literal, line)
        # names of files such as *.onnx are no emphasis
        lines[number] = re.sub(r"(?<= )\*\.", r"\*.", marked)


def _literal(match: re.Match[str]) -> str:
    return f"``{match[1]}``" + ("\\ " if match[2] else "")


REGION = re.compile(r"<!-- README: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
"""What a page has, on GitHub, in place of a part of the README."""


def _readme_part(match: re.Match[str]) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.split(f"<!-- {match[1]} -->\n")[1].split(f"<!-- end of {match[1]} -->")[0]
    return re.sub(r"\]\(docs/", "](/", part)


def link_root_files(app, docname, source) -> None:  # type: ignore[no-untyped-def]
    """Fill the pages of ROOT_PAGES with the files of the repository, and point links to such files at the pages."""
    if REGION.search(source[0]):
        app.env.note_dependency(str(ROOT / "README.md"))
        source[0] = REGION.sub(_readme_part, source[0])
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


def add_index_entries(app, docname, source) -> None:  # type: ignore[no-untyped-def]
    """Put the entries of SEARCHES below the title of a page."""
    for words in SEARCHES.get(docname, ()):
        source[0] = source[0].replace("\n", f"\n\n```{{index}} ! single: {words}\n```\n", 1)


def adapt_mocks() -> None:
    """Give what is documented with mocked modules the signatures that it has with the modules themselves."""
    from sphinx.ext.autodoc.mock import _MockObject

    # a class that derives from a mock has the signature of its __init__
    del _MockObject.__new__
    # annotations and aliases such as torch.Tensor | None
    _MockObject.__or__ = lambda self, other: Union[self, other]  # noqa: UP007
    _MockObject.__ror__ = lambda self, other: Union[other, self]  # noqa: UP007


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the hooks."""
    from sphinx.ext.autodoc.mock import mock

    adapt_mocks()
    warnings.filterwarnings("ignore", "seamseg: no compiled operators")
    with mock(autodoc_mock_imports):
        write_api_pages()
    # before napoleon, which builds on the marked text
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("autodoc-process-docstring", describe_fields, priority=450)
    app.connect("source-read", link_root_files)
    app.connect("source-read", add_index_entries)
