"""`seamseg prepare export DATA OUT`: the ground truth of a dataset folder in the formats of others."""

from __future__ import annotations

import argparse

from seamseg.utils.progress import progress


def add_export(parser: argparse.ArgumentParser) -> None:
    """Its options, besides those of all converters."""
    parser.add_argument("data", metavar="DATA", help="dataset folder")
    parser.add_argument("out", metavar="OUT", help="folder to write; each format has a folder of its own in it")
    parser.add_argument("--split", metavar="A,B", help="which lists of images (default: all that DATA has)")
    parser.add_argument(
        "--format", default="coco", metavar="LIST", help="coco,cityscapes,vistas, with commas between (default: coco)"
    )
    parser.add_argument("--force", action="store_true", help="write over a split that OUT has already")


def run_export(args: argparse.Namespace) -> int:
    """Export and say what was written."""
    from seamseg.prepare.convert import Options
    from seamseg.prepare.export import export_dataset

    options = Options(getattr(args, "workers", None), progress, copy=args.copy, symlink=args.symlink)
    formats = _words(args.format)
    counts = export_dataset(args.data, args.out, _words(args.split or ""), formats, options, args.force)
    images = ", ".join(f"{count} {'image' if count == 1 else 'images'} of {name}" for name, count in counts.items())
    print(f"{args.out}: {images} in {', '.join(dict.fromkeys(formats))}")
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
