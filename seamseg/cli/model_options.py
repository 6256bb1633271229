"""Options of the commands that run a trained model: predict, serve, evaluate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.utils.errors import InputError, require_packages

if TYPE_CHECKING:
    from seamseg.inference.options import InferenceOptions


def add_model_options(
    parser: argparse.ArgumentParser, group: argparse._ArgumentGroup | None = None, classes: bool = True
) -> None:
    """Add the options of opening a model and running it: those of :func:`inference_options`, and the device.

    Parameters
    ----------
    parser : parser of the command
    group : group for the options of opening the model; None for the parser
    classes : offer a choice of classes
    """
    opening = parser if group is None else group
    opening.add_argument("--config", metavar="F", help="INI file, if the model does not contain one")
    opening.add_argument(
        "--meta",
        "--classes-file",
        metavar="F",
        help="metadata.bin, if the model does not contain one; for a network of transformers also a class list or the "
        "JSON of COCO categories",
    )
    opening.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N; for .onnx cpu or openvino (default: auto)"
    )
    opening.add_argument(
        "--precision",
        default="fp32",
        metavar="P",
        help="fp32, bf16, fp16 (GPU only), or auto: bf16 where it is fast (default: fp32)",
    )
    opening.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any configuration key"
    )
    add_components(opening)
    _add_fusion(parser.add_argument_group("fusion to a panoptic map (defaults: the model's configuration)"))
    _add_input_size(parser.add_argument_group("size of the network's input"))
    _add_views(parser.add_argument_group("views and classes" if classes else "views"), classes)
    _add_acceleration(parser.add_argument_group("acceleration for many images of few sizes, after a slow start"))


def add_components(parser: argparse.ArgumentParser | argparse._ArgumentGroup, dest: str = "set") -> None:
    """Add `--components`, which is an override in the list `dest`."""
    parser.add_argument(
        "--components",
        dest=dest,
        type=lambda name: f"general.components={name}",
        action="append",
        metavar="FILE",
        help="Python file or module with components, see docs/how-to/extend.md; repeatable",
    )


def add_foreign_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of reading a model to convert it, which may be a classifier."""
    parser.add_argument(
        "--config", metavar="FILE", help="configuration of a model without its own; JSON of a classifier"
    )
    parser.add_argument(
        "--meta",
        "--classes-file",
        metavar="F",
        help="metadata.bin of a model without its own; for a network of transformers also a class list",
    )
    parser.add_argument(
        "--set", action="append", dest="overrides", default=[], metavar="SECTION.KEY=VALUE", help="override a key"
    )
    add_components(parser, "overrides")


def inference_options(args: argparse.Namespace) -> InferenceOptions:
    """Return the options of a predictor."""
    from dataclasses import fields  # not for --help

    from seamseg.inference.options import InferenceOptions

    names = {field.name for field in fields(InferenceOptions)}
    given = {name: value for name, value in vars(args).items() if name in names}
    given |= {"min_stuff_area": args.min_area, "overrides": tuple(args.set)}
    if args.tiles.isdecimal() and len(args.tiles) < 20:
        given["tiles"] = int(args.tiles)
    return InferenceOptions(**given)


def check_model(
    model: str,
    config: str | None = None,
    meta: str | None = None,
    overrides: Sequence[str] = (),
    device: str | None = None,
) -> None:
    """Raise InputError for what is missing or misspelt, before the libraries are loaded, which takes seconds.

    Parameters
    ----------
    model, config, meta, overrides, device : arguments as given; a model of the hub is not downloaded
    """
    from seamseg.checkpoints.foreign import is_foreign, is_torchvision
    from seamseg.checkpoints.hub import is_hub_uri
    from seamseg.checkpoints.model_path import PACKAGE_ENDING, is_exported, local_model, snapshot_in
    from seamseg.checkpoints.names import WEIGHTS_ENDING
    from seamseg.config.loader import check_overrides
    from seamseg.utils.files import nearest_path

    if is_hub_uri(model):
        require_packages("huggingface_hub", what=model)
    elif is_foreign(model):
        require_packages("torchvision" if is_torchvision(model) else "transformers", what=model)
    else:
        path = local_model(model)
        path = snapshot_in(path) if path.is_dir() else path
        if path.suffix == WEIGHTS_ENDING:
            require_packages("safetensors", what=model)
        elif is_exported(path) and path.suffix != PACKAGE_ENDING:
            engine = "openvino" if (device or "").startswith("openvino") else "onnxruntime"
            require_packages(engine, what=model)
    # that of a classifier is JSON
    if config is not None and not config.endswith(".json"):
        _check_config(config, overrides)
    else:
        check_overrides(overrides)
    if meta is not None and not Path(meta).exists():
        raise InputError(f"`meta={meta}`: no such file{nearest_path(meta)}")


def _check_config(config: str, overrides: Sequence[str]) -> None:
    from seamseg.config.kinds import KINDS
    from seamseg.config.loader import load_config

    problems = []
    # one that names no kind is for the kind of the model, which is not known yet
    for kind in KINDS:
        try:
            load_config(config, kind, overrides)
            return
        except InputError as problem:
            problems.append(problem)
    raise problems[0]


def _add_fusion(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--score-threshold", type=float, metavar="P", help="minimum score of a detection")
    group.add_argument(
        "--overlap-threshold",
        "--iou-threshold",
        type=float,
        metavar="P",
        help="omit a detection if more than this part of it is hidden",
    )
    group.add_argument("--min-area", type=int, metavar="N", help="minimum pixels of stuff, at network size, else void")


def _add_input_size(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--shortest-size", type=int, metavar="N", help="shortest side (default: as configured)")
    group.add_argument(
        "--size", type=int, metavar="N", help="longest side, exactly, up or down, instead of the other two sizes"
    )
    group.add_argument(
        "--longest-max-size",
        type=int,
        metavar="N",
        help="maximum of the longest side, to which panoramas are shrunk "
        "(default: 4 times the shortest size, or the configured longest_max_size if that is larger)",
    )
    group.add_argument(
        "--tiles",
        default="auto",
        metavar="auto|off|N",
        help="process large images in overlapping tiles, which bounds the memory: auto, inputs above 16 Mi pixels in "
        "tiles of side 2048; N, inputs larger than a tile in tiles of side N; off, never (default: auto)",
    )
    group.add_argument("--tile-overlap", type=int, metavar="N", help="overlap of tiles in pixels (default: a quarter)")
    group.add_argument(
        "--preview", action="store_true", help="half the size: a quarter of the time, small objects are missed"
    )


def _add_views(group: argparse._ArgumentGroup, classes: bool) -> None:
    group.add_argument(
        "--tta",
        metavar="LIST",
        help="test-time augmentation with several views of each image, such as flip,0.75,1.0,1.25: mirrored, and "
        "scaled by these factors; multiplies the time by the sum of their squares, twice that with flip",
    )
    group.add_argument(
        "--tta-fusion",
        default="mean",
        metavar="M",
        help="merge the views of a semantic model by mean (of the probabilities), max (the surest view) or voting "
        "(default: mean)",
    )
    if classes:
        group.add_argument("--classes", metavar="LIST", help="only these classes, such as person,car; others are void")
    else:
        group.set_defaults(classes=None)


def _add_acceleration(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile the network with torch.compile: takes minutes at the start, once for all sizes (twice with torch "
        "2.11); on a CPU, which needs a C++ compiler, it is slower than the default",
    )
    group.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="GPU only: record a CUDA graph for each input size that occurs twice (the last 8 sizes); can be combined "
        "with --compile",
    )
    group.add_argument(
        "--pad-to",
        type=int,
        default=1,
        metavar="N",
        help="pad the network's input to multiples of N, such as 128, for fewer sizes; results differ slightly near "
        "the right and lower edge (default: 1, no padding)",
    )
