"""Predict any number of images with Ray Data, on one machine or a cluster; needs `pip install 'ray[data]'`.

    python -m seamseg.contrib.ray city.zip photos/ maps/
    python -m seamseg.contrib.ray city.zip s3://bucket/photos s3://bucket/maps --actors 8 --gpus 1 --batch-size 8
    python -m seamseg.contrib.ray city.zip shards/ maps/ --input webdataset

IN is a folder of images (searched with its sub-folders), of tars of images, or of Parquet files with a column `path`
and a column `bytes` or `image`; IN and OUT are local or at an object store (s3://, gs://, abfs://). OUT gets Parquet
files with the columns name, panoptic_png (id image of COCO: R + 256 G + 65536 B), segments_info, height, width, error.
An image or a tar that cannot be read is a row with its error. Run the same command again to predict what is missing in
OUT.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from seamseg.checkpoints.model_path import local_model
from seamseg.inference.options import LoadOptions
from seamseg.inference.predictor import build_predictor, open_for_inference
from seamseg.maps.formats.coco_writer import encode_result
from seamseg.maps.images import PHOTO_ENDINGS, as_rgb, open_image
from seamseg.results import Panoptic
from seamseg.utils.errors import (
    InputError,
    SeamsegError,
    counted,
    describe_error,
    lacks_memory,
    one_line,
    require_packages,
)
from seamseg.utils.limits import IMAGE_BYTES, LimitedTarInfo, read_limited
from seamseg.utils.options import option
from seamseg.utils.output import echo

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from ray.data import Dataset

COLUMNS = ("bytes", "image")
"""Columns of images, of which the first present is taken: encoded files, or arrays `H x W x 3` uint8."""


class PanopticActor:
    """Panoptic segmentation of batches of images.

    An image that cannot be read or does not fit into the memory fills its `error` column and never stops the batch;
    other errors, which concern all images, are raised.

    Parameters
    ----------
    model : see :func:`seamseg.load`, on a path or URL that every worker can read
    batch_size : images of equal size that the network processes together; None for 4 on a GPU, 1 elsewhere
    **options : options of :func:`seamseg.load`

    Raises
    ------
    InputError
        if the model is not panoptic, or see :func:`seamseg.load`

    Examples
    --------
    Use it in a pipeline of your own, or in any engine that maps batches of columns; it does not import Ray.

    >>> photos = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)  # doctest: +SKIP
    >>> maps = photos.map_batches(  # doctest: +SKIP
    ...     PanopticActor, fn_constructor_kwargs={"model": "city.zip"}, batch_size=16, num_gpus=1,
    ...     compute=ray.data.ActorPoolStrategy(size=4),
    ... )
    >>> maps.drop_columns(["bytes"]).write_parquet("s3://bucket/maps")  # doctest: +SKIP
    """

    def __init__(self, model: Any, batch_size: int | None = None, **options: Any) -> None:
        if batch_size is not None and batch_size < 1:
            raise InputError(f"`batch_size={batch_size}`: must be at least 1")
        given = LoadOptions(model, **options)
        opened = open_for_inference(model, given.device, given.config, given.meta, given)
        self.model = build_predictor(opened, given)
        if self.model.result_type is not Panoptic:
            raise InputError(f"{model}: a model of kind {self.model.kind}; PanopticActor needs a panoptic one")
        self.batch_size = batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the columns of the results.

        Parameters
        ----------
        batch : columns by name, as lists or arrays

        Returns
        -------
        all columns of the batch, and arrays `panoptic_png` (bytes, the id image of COCO: R + 256 G + 65536 B),
        `segments_info` (JSON, COCO's entries with the `name` of the class), `height`, `width` (pixels) and `error`
        (text, empty for images that were processed; the others have `b""`, `[]` and 0)

        Raises
        ------
        InputError
            if the batch has no column of images
        """
        column = next((name for name in COLUMNS if name in batch), None)
        if column is None:
            given = ", ".join(map(repr, batch))
            raise InputError(f"the batch has the columns {given}, none of them is {' or '.join(map(repr, COLUMNS))}")
        images = [_decode(value) for value in batch[column]]
        readable = [image for image in images if not isinstance(image, str)]
        results = iter(self._predict(readable))
        rows: list[tuple[bytes, str, int, int, str]] = []
        for image in images:
            result = image if isinstance(image, str) else next(results)
            if isinstance(result, str):
                rows.append((b"", "[]", 0, 0, result))
                continue
            annotation, png = encode_result(result, result.metadata)
            names = [s.name for s in result.segments if not s.iscrowd]
            entries = [{**entry, "name": name} for entry, name in zip(annotation["segments_info"], names, strict=True)]
            rows.append((png, json.dumps(entries), *result.size, ""))
        made = {name: [row[k] for row in rows] for k, name in enumerate(_RESULTS)}
        return {**batch, **{name: np.array(values, _TYPES.get(name, object)) for name, values in made.items()}}

    def _predict(self, images: Sequence[Image.Image]) -> list[Panoptic | str]:
        """Return the results, for an image that fails the reason."""
        try:
            return list(self.model.predict_iter(images, keep_image=False, batch_size=self.batch_size))
        except Exception as error:
            if not (isinstance(error, SeamsegError) or lacks_memory(error)):
                raise
            if len(images) == 1:
                return [str(error) or "out of memory"]
        return [result for image in images for result in self._predict([image])]


_RESULTS = ("panoptic_png", "segments_info", "height", "width", "error")
_TYPES = {"height": np.int64, "width": np.int64}


def _decode(value: Any) -> Image.Image | str:
    """Decode an image; the reason if that fails."""
    try:
        if value is None:
            return "no image"
        if isinstance(value, (bytes, bytearray, memoryview)):
            return open_image("image", bytes(value))
        return as_rgb(value if isinstance(value, Image.Image) else Image.fromarray(np.asarray(value)))
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a decoder raises, it is about this image
        return f"cannot be decoded: {describe_error(error)}"


SCHEMES = ("s3", "gs", "abfs", "abfss", "file")
"""Schemes of URLs. IN and OUT alone are opened; names in data are not."""
_ENDINGS = {"images": PHOTO_ENDINGS, "webdataset": (".tar", ".tar.gz", ".tgz"), "parquet": (".parquet",)}
_OWN_NAME = re.compile(r"[0-9a-f]{32}_\d{6}[-_\d]*\.\w+")  # Ray: run, task, part


@dataclass(frozen=True)
class RayOptions:
    """Options of :func:`predict`.

    Raises
    ------
    InputError
        if a value is unknown or out of range
    """

    input: str = option("images, webdataset or parquet (default: images)", "images")
    actors: int = option("processes with a model each (default: 1)", 1)
    cpus: float = option("processors of an actor (default: 1)", 1.0)
    gpus: float = option("GPUs of an actor; fractions share one (default: 0)", 0.0)
    batch_size: int = option("images of a batch (default: 4)", 4)
    rows_per_file: int = option("images of an output file, at least (default: 500)", 500)

    def __post_init__(self) -> None:
        if self.input not in _ENDINGS:
            raise InputError(f"`input={self.input}`: choose among {', '.join(_ENDINGS)}")
        for name in ("actors", "batch_size", "rows_per_file"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}={getattr(self, name)}`: must be at least 1")
        if not (self.cpus > 0 and self.gpus >= 0):
            raise InputError(f"`cpus={self.cpus:g}`, `gpus={self.gpus:g}`: must be positive, and 0 or more")


@dataclass(frozen=True)
class Counts:
    """Images of a run: predicted, failed (rows with an error) and there before."""

    predicted: int
    failed: int
    before: int


def predict(model: Any, inputs: str, out: str, options: RayOptions = RayOptions(), **load: Any) -> Counts:
    """Predict the images that `out` lacks, with Ray Data.

    Ray starts on this machine unless it runs or `RAY_ADDRESS` names a cluster. A worker that dies is replaced, and its
    batch repeated. Output files that a killed run left incomplete are removed first.

    Parameters
    ----------
    model : see :func:`seamseg.load`, on a path that every worker can read
    inputs, out : folders, local or at an object store
    options : form of the data, and workers
    **load : options of :func:`seamseg.load`

    Raises
    ------
    InputError
        if Ray is not installed, a folder has no such input, `out` is in `inputs` or holds Parquet files of others, or
        the model is not panoptic
    """
    require_packages("ray", what="predicting with Ray Data", extra="ray")
    import ray
    from ray.data import ActorPoolStrategy

    (here, source), (there, target) = _filesystem(inputs), _filesystem(out)
    if here == there and Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source)):
        raise InputError(f"{out}: is in the input folder {inputs}; choose another folder for the outputs")
    model = local_model(model)
    before = dict(_written(out, repair=True))
    ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    have, need = ray.cluster_resources().get("CPU", 0), options.actors * options.cpus
    if need > have - 1:
        raise InputError(
            f"`actors={options.actors}`: {need:g} of {have:g} processors; leave one to the tasks that read and write"
        )
    rows = _rows(inputs, options.input, before.keys())
    if rows is not None:
        made = rows.map_batches(
            _NamedActor,
            fn_constructor_kwargs={"model": model, "batch_size": options.batch_size, **load},
            batch_size=options.batch_size,
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            compute=ActorPoolStrategy(size=options.actors),
        )
        made.write_parquet(target, filesystem=there, min_rows_per_file=options.rows_per_file)
    new = [error for name, error in _written(out) if name not in before]
    return Counts(sum(not error for error in new), sum(map(bool, new)), len(before))


class _NamedActor(PanopticActor):
    """Keeps the name of each image beside its result, and why its file could not be read."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        made = super().__call__(batch)
        if "problem" in made:
            made["error"] = np.array([p or e for p, e in zip(made["problem"], made["error"])], object)
        return {name: made[name] for name in ("name", *_RESULTS)}


def _rows(inputs: str, form: str, done: Collection[str]) -> Dataset | None:
    """Return the images that are not done, with `name` and `bytes` or `image`; None if there are no new files."""
    import ray

    filesystem, folder = _filesystem(inputs)
    root = f"{folder.rstrip('/')}/"
    files = sorted(path for path in _files(filesystem, folder) if path.lower().endswith(_ENDINGS[form]))
    if not files:
        raise InputError(f"{inputs}: no files that end in {', '.join(_ENDINGS[form])}")
    if form == "parquet":
        found = ray.data.read_parquet(files, filesystem=filesystem)
        known = set(found.columns() or ())
        if "path" not in known or not known & set(COLUMNS):
            raise InputError(f"{inputs}: has the columns {', '.join(sorted(known))}: expected path, and bytes or image")
        kept = [name for name in COLUMNS if name in known][:1]
        found = found.select_columns(["path", *kept]).rename_columns({"path": "name"})
        return found.filter(lambda row: row["name"] not in done)
    names = [path.removeprefix(root) for path in files]
    left = [{"file": name} for name in names if form != "images" or name not in done]
    # not by the readers of Ray: they parse names as URLs, and a file that cannot be read ends the job
    given = {"filesystem": filesystem, "root": root, "done": frozenset(done)}
    return ray.data.from_items(left).map_batches(_read, batch_size=1, fn_kwargs=given) if left else None


def _read(
    batch: Mapping[str, Any], filesystem: FileSystem, root: str, done: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield the images of a file that are not done, or why it cannot be read, as batches of one."""
    file = str(batch["file"][0])
    images = _images_of(filesystem, root, file)
    while True:
        try:
            name, data, problem = next(images, ("", b"", ""))
        except Exception as error:  # of damaged files and of object stores: nearly anything
            name, data, problem = file, b"", describe_error(error)
        if not name:
            return
        name = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # those of tars may be bytes
        if name not in done:
            yield {"name": [name], "bytes": np.array([data], object), "problem": [problem]}


def _images_of(filesystem: FileSystem, root: str, file: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield name, content and problem of each image of a file: of itself, or of a tar, which is read as a stream."""
    folder = next((file[: -len(end)] for end in _ENDINGS["webdataset"] if file.lower().endswith(end)), None)
    with filesystem.open_input_stream(root + file, compression=None) as stream:
        if folder is None:
            yield file, read_limited(stream, IMAGE_BYTES, file, "image"), ""
            return
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=LimitedTarInfo) as archive:
            for member in archive:
                parts = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..", ".")]
                if not member.isfile() or not parts or parts[-1].startswith("."):
                    continue
                if parts[-1].lower().endswith(PHOTO_ENDINGS):
                    problem = "too large" if member.size > IMAGE_BYTES else ""
                    content = None if problem else archive.extractfile(member)
                    yield "/".join((folder, *parts)), content.read() if content else b"", problem


def _written(out: str, repair: bool = False) -> list[tuple[str, str]]:
    """Return name and error of each image in the output files; with `repair` remove those that have no end.

    Nothing is removed if a file is not an output (InputError) or cannot be read now (OSError).
    """
    filesystem, folder = _filesystem(out)
    found: list[tuple[str, str]] = []
    torn = []
    for path in sorted(path for path in _files(filesystem, folder) if path.endswith(".parquet")):
        if repair and _OWN_NAME.fullmatch(PurePosixPath(path).name):
            with filesystem.open_input_file(path) as file:
                file.seek(max(file.size() - 4, 0))
                if file.read() != b"PAR1":
                    torn.append(path)
                    continue
        try:
            found += _read_names(filesystem, path)
        except (ValueError, KeyError) as error:
            why = f"{path}: not an output of this command, or damaged ({describe_error(error)})"
            raise (InputError if repair else SeamsegError)(f"{why}; move it, or choose another folder") from error
    for path in torn:
        echo(f"{path}: incomplete, removed", file=sys.stderr)
        filesystem.delete_file(path)
    return found


def _read_names(filesystem: FileSystem, path: str) -> Iterator[tuple[str, str]]:
    from pyarrow import parquet

    table = parquet.read_table(path, columns=["name", "error"], filesystem=filesystem)
    return zip(table["name"].to_pylist(), table["error"].to_pylist(), strict=True)


def _filesystem(place: str) -> tuple[FileSystem, str]:
    scheme, mark, _ = place.partition("://")
    if mark and scheme not in SCHEMES:
        raise InputError(f"{place}: supported are local folders, and URLs of {', '.join(SCHEMES)}")
    from pyarrow.fs import FileSystem, LocalFileSystem

    if not mark:
        return LocalFileSystem(), str(Path(place).absolute())
    try:
        filesystem, folder = FileSystem.from_uri(place)
    except (ValueError, OSError) as error:
        raise InputError(f"{place}: {one_line(error)}") from None
    return filesystem, folder


def _files(filesystem: FileSystem, folder: str) -> list[str]:
    """Return the files of a folder, with sub-folders, without hidden ones; none if it does not exist."""
    from pyarrow.fs import FileSelector

    found = filesystem.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    return [file.path for file in found if file.is_file and "/." not in file.path[len(folder) :]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if images failed, 2 for wrong input."""
    parser = argparse.ArgumentParser(
        prog="python -m seamseg.contrib.ray",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="see `seamseg predict`; on a path that every worker can read")
    parser.add_argument("inputs", metavar="IN", help="folder of the input, local or at an object store")
    parser.add_argument("out", metavar="OUT", help="folder of the output, local or at an object store")
    for field in fields(RayOptions):
        flag, text = f"--{field.name.replace('_', '-')}", field.metadata["text"]
        parser.add_argument(flag, type=type(field.default), default=field.default, help=text)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16, fp16 or auto (default: fp32)")
    args = parser.parse_args(argv)
    try:
        options = RayOptions(**{field.name: getattr(args, field.name) for field in fields(RayOptions)})
        counts = predict(args.model, args.inputs, args.out, options, device=args.device, precision=args.precision)
    except SeamsegError as error:
        flags = {name: f"--{name.replace('_', '-')}" for name in vars(args)}
        named = re.sub(r"`(\w+)=([^`]*)`", lambda m: f"{flags[m[1]]} {m[2]}" if m[1] in flags else m[0], str(error))
        echo(one_line(named), file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception as error:  # Ray shows the traceback of a worker in its message, the error last
        text = (str(error).strip() or type(error).__name__).splitlines()[-1]
        echo(f"{args.out}: ended early, run the command again: {text}", file=sys.stderr)
        return 1
    there = f", {counts.before} were there" if counts.before else ""
    echo(f"{args.out}: {counted(counts.predicted, 'image')} predicted, {counts.failed} failed{there}")
    return 1 if counts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
