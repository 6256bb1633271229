"""The blocks of README and docs run as printed, in the order of their page, and print the outputs below them.

An HTML comment on the line before a block changes this:

- `not run: REASON`: nor is its output compared
- `file: NAME`: the block is the content of a file
- `files`: it makes the files of all pages, here with a demo of few scenes
- `figures vary`: only the words of an output are compared; its figures are of another machine or of the whole demo
"""

import configparser
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from seamseg.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_generated" not in p.parts)]
BLOCK = re.compile(r"^(?:<!-- ([^<>]*) -->\n)? *```(\S*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"sh", "python", "output", "ini", "json", "text", "nginx", "{toctree}", "{include}"}
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
MEASURED = r"(?=\s?(?:/s|s/step|images/s|ms|[KMG]i?B|s\b))"


ELSEWHERE = {"&&", "|", ">", "new", "components", "--components"}
"""In commands that need a shell, or a process without the components of other pages."""


class Block(NamedTuple):
    line: int
    mark: str
    language: str
    text: str


def blocks(path):
    text = path.read_text(encoding="utf-8")
    return [
        Block(text[: found.start()].count("\n") + 1, found[1] or "", found[2], found[3])
        for found in BLOCK.finditer(text)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_are_well_formed(path):
    for block in blocks(path):
        assert block.language in LANGUAGES, f"{path.name}: line {block.line}"
        assert re.fullmatch("|not run: .+|file: .+|files|figures vary", block.mark), f"{path.name}: {block.mark}"
        if block.language == "json":
            json.loads(block.text)
        if block.language == "ini":
            configparser.ConfigParser(interpolation=None).read_string(block.text)


def commands(text):
    """Yield the commands of a block; a backslash at the end of a line continues it."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def run_shell(text):
    """Run the commands of a block, most of them in this process, and return what they print."""
    printed = io.StringIO()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for command in commands(text):
        words = shlex.split(command, comments=True)
        if words[0] == "seamseg" and not ELSEWHERE & set(words):
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = main(words[1:])
        else:
            done = subprocess.run(
                ["bash", "-c", command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            code = done.returncode
            printed.write(done.stdout)
        assert code == 0, f"{command}\n{printed.getvalue()}"
    return printed.getvalue()


def run_python(text, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(text, "block", "exec"), names)
    return printed.getvalue()


def check_output(expected, printed, figures):
    """Compare words and, within 5 %, figures other than times and memory; `...` is any text."""
    parts = re.split(rf"(\.\.\.|{NUMBER}{MEASURED}|(?<!\w){NUMBER}(?!\w)|\s+)", expected.strip())
    pattern, wanted = "", []
    for part in parts:
        if part == "...":
            pattern += ".*?"
        elif part.isspace():
            pattern += r"\s+"
        elif re.fullmatch(NUMBER, part):
            pattern += f"({NUMBER})"
            wanted.append(part)
        else:
            pattern += re.escape(part)
    found = re.search(pattern, printed, re.DOTALL)
    assert found, f"expected\n{expected}\nprinted\n{printed}"
    if figures:
        measured = [bool(re.match(MEASURED, printed[found.end(n + 1) :])) for n in range(len(wanted))]
        for want, got, free in zip(wanted, found.groups(), measured, strict=True):
            assert free or math.isclose(float(want), float(got), rel_tol=0.05), f"{want}: {got}\n{printed}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Make the files that the pages use with the commands of the tour, and a demo of few scenes."""
    folder = tmp_path_factory.mktemp("files")
    (made,) = [b for b in blocks(ROOT / "docs" / "quickstart" / "tour.md") if b.mark == "files"]
    small = made.text.replace("seamseg demo", "seamseg demo --train 24 --val 4 --set scheduler.epochs=4")
    assert small != made.text
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_shell(small)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [p for p in PAGES if any(b.language in ("sh", "python") and not b.mark for b in blocks(p))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_blocks_run(path, files, tmp_path, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(files, folder, copy_function=os.link)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    printed = ""
    for block in blocks(path):
        if block.mark.startswith("not run"):
            printed = None
        elif block.mark.startswith("file"):
            (folder / block.mark.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.language == "sh" and block.mark != "files":
            printed = run_shell(block.text)
        elif block.language == "python":
            printed = run_python(block.text, names)
        elif block.language == "output" and printed is not None:
            check_output(block.text, printed, block.mark != "figures vary")
