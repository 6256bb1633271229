"""The documentation: length of pages and lines, links, and the paths that code refers to."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from seamseg.cli.main import build_parser
from seamseg.config.experiments import packaged
from seamseg.config.loader import check_overrides
from seamseg.contrib.classification.config import packaged_classifier

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GENERATED = ROOT / "docs" / "config.md"
STRUCTURE = ROOT / "docs" / "design" / "structure.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "results" / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_generated" not in p.parts),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r"`((?:seamseg|tests|benchmarks|csrc|configs|scripts)/[\w./-]+)`")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
GPU_TABLE = re.compile(r"<!-- (gpu \w+) -->.*?<!-- end of \1 -->", re.DOTALL)


def page_id(path):
    return str(path.relative_to(ROOT))


def headings(path):
    """The anchors of a page, as GitHub and MyST form them, and explicit MyST targets."""
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_pages_and_lines_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < (200 if path == README else 250)
    if path != GENERATED:
        assert [line for line in GPU_TABLE.sub("", text).splitlines() if len(line) > 130] == []


def commands(path):
    text = path.read_text(encoding="utf-8")
    blocks = [*CODE.findall(text), *re.findall(r"(?:^ {4}.*\n)+", CODE.sub("", text), re.MULTILINE)]
    for line in re.split(r"\n| && ", re.sub(r"\s*\\\n\s*", " ", "\n".join(blocks))):
        command = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:torchrun .* -m )?seamseg ([a-z-]+(?: .*|$))", line)
        # a remark stands behind two spaces; options in brackets are a synopsis
        if command and not re.search(r" \[-|\.\.\.$", command[1]):
            yield shlex.split(re.sub(r"  .*", "", command[1]), comments=True)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_commands_parse(path):
    for words in commands(path):
        args = build_parser(words).parse_args(words)
        config = getattr(args, "config", None)
        if config is not None and re.fullmatch(r"[a-z\d_-]+", str(config)):
            assert packaged(config) or packaged_classifier(config), words
        if words[0] == "train":
            check_overrides([override for override in args.overrides if not re.match(r"\w+ \w+\.", override)])


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_relative_links_and_source_files_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{page_id(path)}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in headings(file), f"{page_id(path)}: {target} has no such heading"
    # the comparison with removed code names its files
    for name in SOURCE.findall(text if path.stem != "libraries" else ""):
        assert (ROOT / name).exists(), f"{page_id(path)}: {name}"


def test_every_page_is_in_the_navigation():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {
        line.strip() for block in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL) for line in block.split("\n")
    }
    pages = {str(p.relative_to(ROOT / "docs").with_suffix("")) for p in PAGES if p.is_relative_to(ROOT / "docs")}
    assert pages - listed == {"index"}


def test_paths_of_pages_in_the_code_exist():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git clone")
    for name in tracked.stdout.splitlines():
        if name.endswith((".py", ".cpp", ".h", ".cu", ".cuh", ".ini", ".md", ".toml", "Makefile")):
            for page in re.findall(r"\bdocs/[\w/-]+\.md", (ROOT / name).read_text(encoding="utf-8")):
                assert (ROOT / page).exists(), f"{name}: {page}"


def test_the_table_of_operators_is_complete():
    """All operators are named; those without a CUDA kernel are said to run on the CPU only."""
    names = set(re.findall(r'"(\w+)\(', (ROOT / "seamseg" / "ops" / "schemas.inc").read_text(encoding="utf-8")))
    table = (ROOT / "docs" / "reference" / "ops.md").read_text(encoding="utf-8")
    rows = {name: line for line in table.splitlines() if line[0:1] == "|" for name in re.findall(r"`(\w+)`", line)}
    assert {name for name in names if not re.search("_backward$", name)} - set(rows) == set()
    cuda = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc" / "cuda").glob("*.cu"))
    for name in names & set(rows):
        assert (f'impl("{name}"' not in cuda) == ("CPU only" in rows[name]), name


@pytest.mark.parametrize("row", re.findall(r"^  ([\w.]+/?)\s{2,}", STRUCTURE.read_text(encoding="utf-8"), re.MULTILINE))
def test_packages_of_the_map_exist(row):
    assert (ROOT / "seamseg" / row).exists()
