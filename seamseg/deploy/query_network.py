"""Panoptic networks of transformers for export: one image to the class scores and masks of its queries."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from seamseg.checkpoints.foreign import is_torchvision
from seamseg.config import config_to_string
from seamseg.deploy.network import ExportNet, valid_pixels
from seamseg.deploy.source import ExportOptions, ExportSource, default_size, three
from seamseg.formats.exported import QUERY_OUTPUTS, ExportedMetadata
from seamseg.inference.foreign.opening import open_foreign
from seamseg.inference.foreign.padding import padded_input
from seamseg.inference.foreign.transformers_model import TransformersModel, TransformersNetwork, export_size
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import OpenedModel
from seamseg.utils.errors import InputError


class QueryNet(nn.Module):
    """A network of queries, changed so that it can be traced; `forward` maps an image to class and mask logits.

    Parameters
    ----------
    network : a network on the CPU, in float32; its attention becomes that of matrix products
    name : name of the model, for errors

    Attributes
    ----------
    family : family of the network
    classes : classes of the network

    Raises
    ------
    InputError
        if its masked attention is not switched off at the end of the training, as it must be
    """

    def __init__(self, network: TransformersNetwork, name: str) -> None:
        super().__init__()
        net, self.family = network.net, network.family
        self.classes = network.classes
        net.set_attn_implementation("eager")  # type: ignore[operator]
        if self.family.mask_annealing_buffer:
            _switch_off(net, self.family.mask_annealing_buffer, name)
        self.net = net

    def forward(self, pixels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Map an input `1 x 3 x H x W` and its valid pixels, bool `H x W`, to the logits.

        Returns
        -------
        class_logits : `Q x (C + 1)`, the last one of "no object"
        mask_logits : `Q x h x w`
        """
        mask = {"pixel_mask": valid.long()[None]} if self.family.pixel_mask else {}
        outputs = self.net(pixel_values=pixels, **mask)
        scores = self.classes.used_logits(outputs[self.family.class_logits])
        return scores[0], outputs[self.family.mask_logits][0]


class QueryExport(ExportNet):
    """Panoptic networks of queries, one class and one mask each.

    `forward` maps `image` and `size`, see :meth:`ExportNet.normalise`, to

    class_logits : float32 `Q x (C + 1)`, the last one of "no object"
    mask_logits : float32 `Q x h x w`, of the whole input
    """

    net: QueryNet
    output_names = QUERY_OUTPUTS

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """Map a padded image and its valid size to the outputs of the class."""
        valid = valid_pixels(image, size)
        found: tuple[Tensor, Tensor] = self.net(
            padded_input(image, valid, self.standardise, self.net.family.square), valid
        )
        return found


class QuerySource(ExportSource):
    """A trained network of queries that is exported; its `net` is a :class:`QueryNet`."""

    def export_net(self, standard_ops: bool) -> ExportNet:
        """Return the module that is exported; it has operators of torch only."""
        return QueryExport(self.net, self.metadata.mean, self.metadata.std, standard_ops).eval()


def check_queries(model: str | Path, target: Path, options: ExportOptions) -> None:
    """Raise InputError, before anything is loaded, for a model of another library that cannot be exported so.

    Parameters
    ----------
    model : model of transformers or torchvision
    target : file to write
    options : options of the export
    """
    if is_torchvision(model):
        raise InputError(f"{model}: networks of torchvision are not exported")
    if target.suffix != ".onnx":
        raise InputError(f"{target}: networks of transformers are exported to .onnx files only")
    for name, default in (("dynamic", False), ("part", "all"), ("int8", None)):
        if (value := getattr(options, name)) != default:
            raise InputError(f"`{name}={value}`: does not apply to {model}, a network of transformers")


def open_queries(path: Path, options: ExportOptions) -> QuerySource:
    """Open a network of transformers after :func:`check_queries`; its weights are loaded last.

    Raises
    ------
    InputError
        if it cannot be exported, or not at this size; see also :func:`seamseg.inference.foreign.opening.open_foreign`
    """
    inference = InferenceOptions(overrides=options.overrides)
    opened = open_foreign(path, "cpu", options.config, options.meta, inference)
    assert isinstance(opened, TransformersModel)
    input_size = opened.input_size(inference)
    opened.check_export(options.size, default_size(input_size))
    return query_source(opened, opened.build(inference), options, opened.licence)


def query_source(
    opened: OpenedModel, network: TransformersNetwork, options: ExportOptions, licence: str = ""
) -> QuerySource:
    """Return a network of queries for export; errors as of :func:`open_queries`.

    Parameters
    ----------
    opened, network : model and network
    options : options of the export
    licence : licence of the weights as the model states it
    """
    inference = InferenceOptions(overrides=options.overrides)
    input_size = opened.input_size(inference)
    size = export_size(network.family, network.side, opened.name, options.size, default_size(input_size))
    net = QueryNet(network, opened.name)
    loading = opened.config.dataloader
    metadata = ExportedMetadata(
        kind=opened.kind,
        config=config_to_string(opened.config),
        metadata=opened.metadata,
        size=None,
        mean=three(loading.rgb_mean, 0.0),
        std=three(loading.rgb_std, 1.0),
        thresholds=vars(inference.thresholds(opened.config)),
        licence=options.licence or licence,
        query_classes=tuple(net.classes.used.tolist()),
    )
    return QuerySource(net, metadata, size, input_size)


def _switch_off(net: nn.Module, buffer: str, name: str) -> None:
    """Replace a buffer of zeros by numbers: the tracer follows no branch that depends on a tensor."""
    probabilities = net.get_buffer(buffer)
    if torch.any(probabilities != 0):
        raise InputError(
            f"{name}: cannot be exported: {buffer} is not 0, the masked attention of its training is still on"
        )
    delattr(net, buffer)
    setattr(net, buffer, [0.0] * len(probabilities))
