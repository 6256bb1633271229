"""The order of imports between the parts of the package; loading it loads no heavy or optional library."""

import ast
import graphlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import seamseg

PACKAGE = Path(seamseg.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

TOP = ("__main__", "verbs", "cli", "demo", "testing")

CORE = (
    "components", "training", "predicting", "validation", "inference", "checkpoints", "data", "models", "results",
    "inplace_abn", "fusion", "config", "ops", "structures", "extensions",
)  # fmt: skip

MAPS = (
    "report", "prepare", "toy_city", "evaluation", "metrics_file", "folder", "images", "formats", "visualize",
    "pasting", "panoptic_map", "predictions", "idmaps",
)  # fmt: skip
"""The parts of `seamseg.maps`, which is without torch, from the top down."""

ORDER = (*TOP, "__init__", "contrib", *CORE, *(f"maps.{part}" for part in MAPS), "utils", "version")
"""The parts of `seamseg` from the top down: each imports only from itself and from parts below it.

`__init__` is `seamseg` itself, which may offer anything, lazily."""


def _part(words):
    if words[0] == "maps":
        return ".".join(words[:2]) if words[1:] not in ((), ("__init__",)) else "utils"
    return words[0]


def _package(path):
    return _part(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def _nodes(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(path):
    """`(line, dotted name below seamseg)` of each import of ours in a file, absolute or relative."""
    own = ("seamseg", *path.relative_to(PACKAGE).parts[:-1])
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # an imported name may be a module
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "seamseg":
                yield node.lineno, name.partition(".")[2] or "__init__"


def _strings(path):
    """`(line, dotted name below seamseg)` of the modules of ours that strings name, but for docstrings and messages."""
    for node in _nodes(path):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.fullmatch(r"seamseg\.[a-z_.]+", text):
            yield node.lineno, text.removeprefix("seamseg.").rstrip(".")


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if _package(p) != "__init__"], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_module_imports_only_from_the_packages_below(path):
    package = _package(path)
    may = ORDER[ORDER.index(package) :]
    named = [*_imports(path), *_strings(path)]
    wrong = [f"line {line}: seamseg.{name}" for line, name in named if _part(tuple(name.split("."))) not in may]
    assert not wrong, f"seamseg/{path.relative_to(PACKAGE)} ({package}) may not import {', '.join(wrong)}"


def test_every_part_is_in_the_order():
    assert {_package(path) for path in SOURCES} == set(ORDER)


def _imported_parts(package):
    """Map each module and sub-folder of a package to those of the package that it imports."""
    folder, imported = PACKAGE / package, dict[str, set[str]]()
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        names = (name.split(".") for _, name in _imports(path))
        imported.setdefault(part, set()).update(words[1] for words in names if words[0] == package and len(words) > 1)
    return {part: targets & imported.keys() - {part} for part, targets in imported.items() if part != "__init__"}


@pytest.mark.parametrize("package", ["training", "predicting", "inference", "results"])
def test_imports_inside_a_package_have_one_direction(package):
    imported = _imported_parts(package)
    order = list(graphlib.TopologicalSorter(imported).static_order())
    assert len(order) == len(imported) > 1, "a cycle raises CycleError"


@pytest.mark.parametrize(
    ("imports", "command", "heavy"),
    [
        (
            "models.build, seamseg.data.dataset, seamseg.inference.predictor",
            "",
            "torchvision transformers tensorboard pycocotools starlette uvicorn prometheus_client",
        ),
        # `--help` must not wait for these
        ("cli", "predict", "torch numpy PIL logging configparser"),
        ("cli", "evaluate", "torch numpy PIL logging configparser"),
    ],
)
def test_importing_the_package_stays_light(imports, command, heavy):
    program = f"import sys, seamseg.cli.main as m, seamseg.{imports}; m.build_parser({command.split()}); "
    program += f"print(*sorted(set({heavy.split()}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [], "load these when needed, not with the package"
