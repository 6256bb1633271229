"""Write an HTML report of an evaluation: scores, classes, confusion matrix, and images of every error; or a gallery.

    seamseg evaluate runs/city DATA --out runs/city/evaluation && seamseg report runs/city
    seamseg report runs/city --against runs/baseline --out difference.html
    seamseg report evaluation/ --photos DATA/img --images 100 --size 960
    seamseg predict runs/city photos/ out/ && seamseg report out/

RUN is an evaluation folder written by `seamseg evaluate ... --out`, or a run folder that has one (RUN/evaluation).
The report is a self-contained HTML file. If the run folder has the metrics.jsonl of a training, it includes speed,
memory, and the loss and PQ of each epoch. With --against every score is shown beside the other run's, every
image with both predictions, and images are sorted by the change of their scores. A broken map is left out of the page
and reported; the exit code is then 1.

Of a folder of `seamseg predict`, the page has the overlays, with the number of segments of each class.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seamseg.utils.errors import InputError, counted, one_line
from seamseg.utils.output import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of an evaluation, or of predictions, or of a run")
    parser.add_argument(
        "--against", metavar="RUN2", type=Path, help="another evaluation of the same data set to compare with"
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="HTML file (default: RUN/report.html, or RUN/report-against-RUN2.html)"
    )
    parser.add_argument(
        "--images", type=int, default=500, metavar="N",
        help="maximum number of images, the worst and the best (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--photos", type=Path, metavar="DIR", help="folder of the input images, if the evaluation does not name it"
    )
    parser.add_argument(
        "--size", type=int, default=640, metavar="PX", help="longest side of the images (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path."""
    if args.images < 0:
        raise InputError(f"--images {args.images}: must be 0 or more")
    if not 32 <= args.size <= 4096:
        raise InputError(f"--size {args.size}: must be 32 to 4096 pixels")
    if args.photos is not None and not args.photos.is_dir():
        raise InputError(f"--photos {args.photos}: no such folder")
    if args.out is not None and args.out.is_dir():
        raise InputError(f"--out {args.out}: is a folder; name a file, such as {args.out / 'report.html'}")
    from seamseg.maps.report import find_evaluation, is_gallery, write_gallery, write_report
    from seamseg.utils.progress import progress

    path = args.out
    if path is None and args.against is None:
        path = args.run / "report.html"
    elif path is None:
        # evaluations in run folders all have the same name
        other = args.against.resolve()
        path = args.run / f"report-against-{other.parent.name if other.name == 'evaluation' else other.name}.html"
    named = "; --photos names the folder"
    if args.against is None and is_gallery(args.run):
        written, named = write_gallery(path, args.run, progress, args.images, args.size), ""
    else:
        evaluation = find_evaluation(args.run)
        against = None if args.against is None else find_evaluation(args.against)
        written = write_report(path, evaluation, against, progress, args.images, args.photos, args.size)
    for problem in written.problems:
        echo(f"failed {one_line(problem)}", file=sys.stderr)
    if written.without_image and not args.quiet:
        echo(
            f"seamseg report: {written.without_image} of {written.images} images are missing or unreadable: their "
            f"panels are on grey{named}",
            file=sys.stderr,
        )
    echo(f"open {path} ({path.stat().st_size / 1e6:.1f} MB, {counted(written.images, 'image')})")
    return int(bool(written.problems))
