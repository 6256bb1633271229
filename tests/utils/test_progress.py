"""Progress: plain lines at intervals, a bar on a terminal, nothing when quiet, and the items untouched."""

import sys

import pytest
import tqdm.std

from seamseg.utils import progress as module
from seamseg.utils.output import console
from seamseg.utils.progress import counter, progress


def lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("items", "options", "shown"),
    [
        (range(1000), {"desc": "images"}, ["images: 1000/1000 ("]),
        (iter(range(5)), {"desc": "images"}, ["images: 5 ("]),
        (iter(range(5)), {"total": 5}, ["5/5 ("]),
        ([], {"desc": "images"}, []),
    ],
)
def test_fast_work_is_one_line(items, options, shown, capsys):
    list(progress(items, **options))
    found = lines(capsys)
    assert len(found) == len(shown)
    assert all(line.startswith(start) for line, start in zip(found, shown))


def test_slow_work_prints_lines_with_the_time_left(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(tqdm.std, "time", lambda: now)
    monkeypatch.setattr(module, "LINE_SECONDS", 15.0)
    for _ in progress(range(10), desc="images"):
        now += 4.0
    assert lines(capsys) == [
        "images: 4/10 (0.2/s, 24 s left)",
        "images: 8/10 (0.2/s, 8 s left)",
        "images: 10/10 (0.2/s)",
    ]


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress(range(3), desc="images")) == [0, 1, 2]
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [True, False])
def test_work_that_reports_itself(quiet, capsys):
    console.quiet = quiet
    report = counter("scenes")
    for done in (1, 2, 3):
        report(done, 3)
    printed = lines(capsys)
    assert printed == [] if quiet else printed[-1].startswith("scenes: 3/3 (")
    assert list(progress(range(3))) == [0, 1, 2]
    assert bool(lines(capsys)) != quiet
