"""Who may import whom: the floors of the house, and a package that loads without its heavy or optional libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seamseg

PACKAGE = Path(seamseg.__file__).parent
SCRIPTS = PACKAGE.parent / "scripts"

# the labels of Cityscapes are facts that converters, writers and the evaluation share
GROUND = {"errors", "files", "limits", "version", "cityscapes_labels"}
PARTS = {"structures", "panoptic_map", "maps", "ops", *GROUND}
BELOW_ENGINE = {"config", "backbones", "heads", "fusion", "models", "data", "evaluation", "visualize", "report", *PARTS}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "limits": {"errors"},
    "files": {"errors", "limits"},
    "cityscapes_labels": set(),
    "compiled": set(),
    "panoptic_map": set(),
    "maps": {"compiled"},
    "structures": {"panoptic_map"},
    "ops": {"errors", "compiled"},
    "inplace_abn": {"ops"},
    "config": {"errors", "files", "limits"},
    "backbones": PARTS,
    "heads": {"backbones", *PARTS},
    "fusion": PARTS,
    "models": {"backbones", "heads", "fusion", "config", *PARTS},
    "data": PARTS,
    "evaluation": PARTS,
    "visualize": PARTS,
    "report": {"evaluation", "visualize", *PARTS},
    "engine": BELOW_ENGINE,
    "export": {"engine", *BELOW_ENGINE},
    "cli": {"engine", "export", "evaluation", "report", "data.prepare", "config", "maps", "ops", *GROUND},
    "__main__": {"cli"},
}
"""What each module or package of `seamseg` may import of the others, besides itself."""

TORCHVISION_FREE = "torchvision, tensorboard and pycocotools load when they are needed, not with the package"


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _floor(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """`(line, dotted name below seamseg)` of each import of ours in a file, absolute or relative."""
    own = ("seamseg", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from seamseg import ops` names the part after the import word
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "seamseg" else [module]
        else:
            continue
        for name in names:
            if name.startswith("seamseg."):
                yield node.lineno, name.removeprefix("seamseg.")


def _may(floor: str, target: str) -> bool:
    allowed = {floor} | ALLOWED[floor]
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_floors_below(path: Path) -> None:
    floor = _floor(path)
    if floor == "__init__":
        pytest.skip("the package itself may offer anything, lazily")
    wrong = [f"line {line}: seamseg.{name}" for line, name in _imports(path) if not _may(floor, name)]
    assert not wrong, f"seamseg/{path.relative_to(PACKAGE)} ({floor}) may not import {', '.join(wrong)}"


def test_every_part_has_a_rule() -> None:
    floors = {_floor(path) for path in _sources()} - {"__init__"}
    assert floors <= set(ALLOWED), f"no rule for {sorted(floors - set(ALLOWED))}"


def test_the_rules_have_no_cycle() -> None:
    order: list[str] = []
    waiting = {name: {a.partition(".")[0] for a in allowed} - {name} for name, allowed in ALLOWED.items()}
    while waiting:
        ready = [name for name, needs in waiting.items() if needs <= set(order)]
        assert ready, f"these import each other: {sorted(waiting)}"
        order += ready
        waiting = {name: needs for name, needs in waiting.items() if name not in ready}


@pytest.mark.parametrize("path", sorted(SCRIPTS.rglob("*.py")), ids=lambda path: path.name)
def test_scripts_only_call_the_floors_of_the_door(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seamseg."):
            part = (node.module or "").split(".")[1]
            assert part in {"cli", "engine", "export", "evaluation", "errors"}, f"{path.name}: {node.module}"


def test_relative_imports_are_resolved() -> None:
    assert dict(_imports(PACKAGE / "config" / "__init__.py")), "the reader of imports finds none in seamseg.config"


def test_importing_the_package_stays_light() -> None:
    program = (
        "import sys, seamseg, seamseg.cli.main, seamseg.models.build, seamseg.data.dataset, seamseg.engine.predictor; "
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'torchvision', 'tensorboard', 'pycocotools'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [], TORCHVISION_FREE


def test_the_command_line_answers_without_torch() -> None:
    program = "import sys, seamseg.cli.main as m; m.build_parser([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False", "`seamseg --help` must not wait for torch"
