"""`seamseg prepare --check DATA`: prints the statistics and problems of a dataset folder."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.utils.errors import InputError, SeamsegError, counted, one_line
from seamseg.utils.files import write_json
from seamseg.utils.output import echo
from seamseg.utils.progress import progress

if TYPE_CHECKING:
    from seamseg.maps.prepare.check import Problem, Report

_MAX_PRINTED = 50


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a check; they have no defaults, since they may precede or follow `check`."""
    group = parser.add_argument_group("options of a check")
    group.add_argument("--json", metavar="FILE", default=argparse.SUPPRESS, help="write the full report to FILE")
    group.add_argument(
        "--sheet", metavar="FILE", default=argparse.SUPPRESS, help="contact sheet of samples (default: DATA/check.jpg)"
    )
    group.add_argument(
        "--samples",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="images in the sheet; 0 for no sheet (default: 24)",
    )
    add_workers(group, "processes")


def add_workers(parser: argparse._ActionsContainer, what: str) -> None:
    """Add --workers, which may precede or follow the name of a source, as it has no default."""
    text = f"number of {what} (default: one per processor)"
    parser.add_argument("--workers", type=int, metavar="N", default=argparse.SUPPRESS, help=text)


def run_check(args: argparse.Namespace) -> int:
    """Check, print the report, and return 1 if there are errors."""
    from seamseg.maps.prepare.check import check_dataset

    workers, samples = getattr(args, "workers", None), getattr(args, "samples", 24)
    if samples < 0:
        raise InputError(f"--samples must be 0 or more, got {samples}")
    root = Path(args.check)
    try:
        report = check_dataset(root, workers, progress)
    except InputError as failure:
        # a folder without metadata.bin is a wrong argument; an unreadable data set is a result of the check
        raise SeamsegError(str(failure)) if (root / "metadata.bin").is_file() else failure from None
    # first: the findings must not be lost if the file cannot be written
    _print_report(report)
    if hasattr(args, "json"):
        write_json(args.json, report.as_json(), indent=1)
    if samples:
        _write_sheet(report, Path(getattr(args, "sheet", root / "check.jpg")), samples, workers, "sheet" in args)
    return 1 if report.errors else 0


def _write_sheet(report: Report, path: Path, samples: int, workers: int | None, wanted: bool) -> None:
    from seamseg.maps.prepare.contact_sheet import write_contact_sheet

    try:
        shown = write_contact_sheet(path, report, samples, workers)
    except SeamsegError as failure:
        if wanted:
            raise
        # the data set may be read-only
        echo(f"no sheet: {failure} (--sheet FILE writes it elsewhere)")
        return
    echo(f"{path}: contact sheet of {counted(shown, 'image')}")


def _print_report(report: Report) -> None:
    splits = ", ".join(f"{count} in {name}" for name, count in report.splits.items()) or "in no list"
    echo(f"{report.root}: {counted(len(report.images), 'image')} ({splits})")
    sizes = [f"{w} x {h} ({n})" for (h, w), n in report.sizes]
    more = f" and {len(sizes) - 5} other sizes" if len(sizes) > 5 else ""
    echo(f"width x height: {', '.join(sizes[:5])}{more}; {report.void:.1%} of the pixels are void")
    for split, account in report.accounts.items():
        echo(*account.lines(split), sep="\n")
    echo()
    _print_classes(report)
    _print_problems("error", report.errors)
    _print_problems("warning", report.warnings)
    echo(f"errors: {len(report.errors)}, warnings: {len(report.warnings)}")


def _print_classes(report: Report) -> None:
    width = max([len(one_line(row["name"])) for row in report.classes] + [5])
    echo(f"{'class':{width}}  kind   images  segments  crowds  pixels")
    for row in report.classes:
        counts = f"{row['images']:7}  {row['segments']:8}  {row['crowds']:6}  {row['share']:6.2%}"
        echo(f"{one_line(row['name']):{width}}  {row['kind']}  {counts}")
    echo()


def _print_problems(kind: str, problems: Sequence[Problem]) -> None:
    for problem in problems[:_MAX_PRINTED]:
        echo(f"{kind}: {problem}")
    if len(problems) > _MAX_PRINTED:
        left: defaultdict[str, int] = defaultdict(int)
        for problem in problems[_MAX_PRINTED:]:
            left[Path(problem.file).parent.name] += 1
        where = ", ".join(f"{count} in {folder}/" for folder, count in left.items())
        echo(f"{kind}: {len(problems) - _MAX_PRINTED} more ({where}); --json FILE lists them all")
