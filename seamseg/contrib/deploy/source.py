"""The trained network that is exported, and the metadata of its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from seamseg.checkpoints.model_path import FOREIGN, library_of
from seamseg.config import Config, config_to_string
from seamseg.contrib.classification.checkpoint import CLASSIFICATION, OpenedClassifier, open_classifier
from seamseg.contrib.deploy.network import ExportNet, export_net
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.data.input_size import InputSize
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import OpenedModel, open_for_inference
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import InferenceNetwork
from seamseg.models.folding import fold_abn
from seamseg.models.network import Network
from seamseg.ops.fused import PRECISIONS
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class ExportSource:
    """A network to export, folded; `input_size` is the scaling of images, None for a classifier."""

    net: nn.Module
    metadata: ExportedMetadata
    size: tuple[int, int]
    input_size: InputSize | None

    def export_net(self, standard_ops: bool) -> ExportNet:
        """Return the module that is exported; `standard_ops` as for :class:`.network.ExportNet`."""
        stated = self.metadata
        return export_net(self.net, stated.mean, stated.std, stated.part, standard_ops)


def default_size(size: InputSize) -> tuple[int, int]:
    """Return `(height, width)` for images twice as wide as high, or as the limits of the size are; multiples of 32."""
    if size.longest_size is not None:
        height, width = size.longest_size * 3 // 4, size.longest_size
    else:
        height = size.shortest_size or 1024
        width = min(2 * height, size.longest_max_size or 2 * height)
    return -(-height // 32) * 32, -(-width // 32) * 32


def check_foreign(path: Path, options: ExportOptions) -> None:
    """Raise InputError, before anything is loaded, for a model of another library that cannot be exported so."""
    if library_of(path) == "torchvision":
        raise InputError(f"{path}: networks of torchvision are not exported")
    if Path(options.out).suffix != ".onnx":
        raise InputError(f"{options.out}: networks of transformers are exported to .onnx files only")
    _refuse(options, ("dynamic", "part", "int8"), f"does not apply to {path}, a network of transformers")


def _refuse(options: ExportOptions, names: Sequence[str], text: str) -> None:
    for name in names:
        if (value := getattr(options, name)) not in (False, None, "all", "fp32"):
            raise InputError(f"`{name}={value}`: {text}")


def open_source(path: Path, options: ExportOptions) -> ExportSource:
    """Open a trained model for export."""
    if (library := library_of(path)) == "exported":
        raise InputError(f"{path}: is an exported network: give the model that it was exported from")
    classifier = None if library in FOREIGN else open_classifier(path, options.config)
    if classifier is not None:
        return _of_classifier(classifier, options)
    inference = InferenceOptions(overrides=options.overrides, precision=options.precision)
    opened = open_for_inference(path, "cpu", options.config, options.meta, inference)
    size = opened.input_size(inference)
    network = opened.build(inference)
    traced = getattr(network, "traced", None)
    if traced is not None:  # of a network of queries
        stated = network.export_size(opened.name, options.size, default_size(size))  # type: ignore[attr-defined]
        queries = traced(opened.name)
        return ExportSource(
            queries, _metadata(network, opened, options, inference, query_classes=queries.query_classes), stated, size
        )
    config = opened.config
    net: Network | None = getattr(network, "net", None)
    if net is None:
        raise InputError(f"{path}: the network {config.general.network} cannot be exported: it runs by its `inference`")
    _check(net, config, options)
    multiple = 1
    if net.of_parts:
        multiple = 32 if net.nms_threshold is None else max(config.fpn.out_strides) * config.rpn.stride
    metadata = _metadata(network, opened, options, inference, multiple=multiple, with_ids=net.predicts_ids)
    if options.part == "all":
        # with the sizes of an input of scale 1 if a map has distances
        scale_1 = opened.reference
        sides = (None, None) if scale_1 is None else (scale_1.shortest_size, scale_1.longest_max_size)
        has_distances = any(spec.values == "divide" for spec in net.map_formats.values())
        stated_sides = sides if has_distances and None not in sides else None
        metadata = replace(metadata, maps=net.map_formats, reference=cast("tuple[int, int] | None", stated_sides))
    return ExportSource(net, metadata, default_size(size), size)


def _metadata(
    network: InferenceNetwork, opened: OpenedModel, options: ExportOptions, inference: InferenceOptions, **more: Any
) -> ExportedMetadata:
    config, loading = opened.config, opened.config.dataloader
    has_thresholds = "score_threshold" in network.result_type.options
    return ExportedMetadata(
        kind=network.kind,
        config=config_to_string(config),
        metadata=opened.metadata,
        size=None,
        part=options.part,
        precision=options.precision,
        mean=loading.rgb_mean or (0.0, 0.0, 0.0),
        std=loading.rgb_std or (1.0, 1.0, 1.0),
        thresholds=vars(inference.thresholds(config)) if has_thresholds else {},
        licence=options.licence or getattr(opened, "licence", ""),
        **more,
    )


def _check(net: Network, config: Config, options: ExportOptions) -> None:
    """Raise InputError if a network or one of its heads is not exported, or not with these options."""
    if not net.of_parts:
        if not net.exportable:
            raise InputError(f"the network {config.general.network} cannot be exported: it states exportable = False")
        named = config.general.network
        _refuse(options, ("part", "precision", "int8"), f"is for networks of body and heads, not for {named}")
    elif options.part == "all":
        for name, head in net.custom_heads.items():
            if options.int8 is not None:
                remedy = "leave out its file of `components`"
                raise InputError(f"head {name} is not quantised by `int8={options.int8}`: {remedy}")
            if not head.exportable:
                raise InputError(f"head {name} cannot be exported: leave out its file of `components`")


def _of_classifier(opened: OpenedClassifier, options: ExportOptions) -> ExportSource:
    if options.part != "all":
        raise InputError(f"`part={options.part}`: a classifier has no dense part")
    if options.overrides:
        raise InputError("`overrides` has no effect on a classifier")
    sizes = opened.config.input
    metadata = ExportedMetadata(
        kind=CLASSIFICATION,
        config=json.dumps(opened.config.to_json()),
        metadata=Metadata(0, len(opened.names), opened.names, [], []),
        size=None,
        multiple=32,
        precision=options.precision,
        mean=sizes.mean,
        std=sizes.std,
        licence=options.licence,
    )
    net = fold_abn(opened.net).to(PRECISIONS[options.precision])
    return ExportSource(net, metadata, (sizes.crop_val, sizes.crop_val), None)
