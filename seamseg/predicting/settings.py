"""Settings that decide the outputs of `predict`: model, options and formats; equal settings, equal outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import seamseg.predicting.writers  # noqa: F401  # they register the formats
from seamseg.checkpoints.model_path import CLASSES_NAME, CONFIG_NAME, METADATA_NAME, digest, is_exported, local_model
from seamseg.config import components
from seamseg.config.loader import keys_of, load_components
from seamseg.inference.anonymize import LEAST_SCORE, NOT_LOCATED
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import Predictor, build_predictor, open_for_inference
from seamseg.inference.results import RESULTS
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import MapFormat
from seamseg.predicting.folder import Line, OutputFolder
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.source import Source, Video
from seamseg.predicting.writers.base import OutputFormat, errors_of
from seamseg.predicting.writers.images import AnonymizeWriter
from seamseg.predicting.writers.predictions import MapWriter
from seamseg.utils.errors import InputError, did_you_mean, named_errors
from seamseg.utils.options import flags_of

if TYPE_CHECKING:
    import torch

_SAME_OUTPUTS = ("compile", "cuda_graphs", "probabilities")
"""Options of inference that do not change the outputs, but for rounding; `probabilities` follows from the formats."""


class PredictSettings:
    """The settings of a run, of its options; InputError for what is wrong whatever the model is."""

    def __init__(self, options: PredictOptions) -> None:
        self.options = options
        if options.overrides:
            load_components(options.overrides)
        self.format_names = ["overlay"] if options.hide is None else []
        if options.formats is not None:
            text = options.formats if isinstance(options.formats, str) else ",".join(map(str, options.formats))
            self.format_names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
            known = dict.fromkeys(name for kind in RESULTS for name in formats_of(kind))
            networks = (c.make for c in components.registered("network"))
            known |= dict.fromkeys(name for make in networks for name in getattr(make, "outputs", ()))
            unknown = next((name for name in self.format_names if name not in known), None)
            # the model may have a map of this name
            custom = is_exported(options.model) or components.registered("head")
            if not self.format_names or (unknown is not None and not custom):
                problem = "no format is given" if unknown is None else f"there is no format {unknown!r}"
                meant = did_you_mean(unknown or "", known) or f"; choose among {', '.join(known)}"
                raise InputError(f"`formats={text}`: {problem}{meant}")
        shown = next((name for name in self.format_names if name in ("overlay", "overlay-legacy")), None)
        if options.hide is not None and shown is not None:
            raise InputError(
                f"`formats={shown}` shows what `hide` hides, under the same name: predict on the "
                "anonymised images afterwards, into another folder"
            )
        given = components.registered("format")
        self._makes: dict[str, Any] = {c.name: c.make for c in given if c.name in self.format_names}
        whole = next((name for name, make in self._makes.items() if make.all_classes), None)
        if options.classes is not None and whole is not None:
            raise InputError(f"`formats={whole}` contains all classes: remove `classes`, or use another format")

    @cached_property
    def path(self) -> Path:
        """The path of the model, which is downloaded from a hub."""
        return local_model(self.options.model)

    def load(self, device: str | torch.device = "auto") -> Predictor[Any]:
        """Load the model for these formats, see :func:`seamseg.inference.predictor.open_for_inference`."""
        options = self.options
        if any(make.probabilities for make in self._makes.values()):
            options = replace(options, probabilities=True)
        opened = open_for_inference(self.path, device, options.config, options.meta, options)
        predictor = build_predictor(opened, options)
        # each class states it itself: one derived from another may read more
        drawn = {name for name, make in self._makes.items() if vars(make).get("map_only")}
        drawn |= predictor.map_formats.keys()
        predictor.map_only = options.hide is None and drawn.issuperset(self.format_names)
        return predictor

    def open_folder(
        self, out: str | Path, predictor: Predictor[Any], sources: Sequence[Source | Video]
    ) -> OutputFolder:
        """Return the folder of the outputs; InputError if the model or an image does not have a format."""
        options, folder = self.options, Path(out)
        writers = []
        if self.format_names:
            given = (folder, predictor.metadata, predictor.kind, options.overrides, predictor.map_formats)
            writers = make_writers(self.format_names, *given)
        video = next((s for s in sources if isinstance(s, Video)), None)
        for name, writer in zip(self.format_names, writers):
            writer.least_score, writer.chosen = options.score_threshold or 0.0, predictor.classes
            if problem := writer.problem(predictor.network, video):
                raise InputError(f"`formats={name}`: {problem}")
        if options.hide is not None:
            if not RESULTS[predictor.kind].located:
                raise InputError(f"`hide={options.hide}`: {NOT_LOCATED}")
            score = LEAST_SCORE if options.least_score is None else options.least_score
            # the map without a choice of classes would contain detections above this score: they are hidden, too
            map_score = 1.0 if predictor.classes is None else predictor.thresholds.score_threshold
            hidden = (options.hide, options.style or "blur", min(score, map_score))
            writers.append(AnonymizeWriter(folder, predictor.metadata, *hidden))
        return OutputFolder(folder, writers, self.header(predictor))

    def header(self, predictor: Predictor[Any]) -> Line:
        """Return the first line of the manifest: what changes the outputs, by the names of the flags."""
        options, is_folder = self.options, self.path.is_dir()
        declared = {field.name: field for field in fields(options)}
        inference = [field.name for field in fields(InferenceOptions) if field.name not in _SAME_OUTPUTS]
        values = {name: getattr(options, name) for name in (*inference, "style", "least_score")}
        # name and checksum of files that may change between two runs, also in the folder of the model
        meta_name = METADATA_NAME if (self.path / METADATA_NAME).is_file() else CLASSES_NAME
        for key, given, name in (("config", options.config, CONFIG_NAME), ("meta", options.meta, meta_name)):
            file = self.path if given is None else Path(given)
            file = file / name if file.is_dir() else file
            values[key] = None if given is None else str(given)
            if file.is_file() and (given is not None or is_folder):
                values[key] = f"{file.name} {digest(file)[:12]}"
        values |= {
            "formats": ",".join(self.format_names),
            "overrides": list(options.overrides),
            "tiles": str(options.tiles),
            # the actual dtype: `auto` depends on the device
            "precision": predictor.network.precision,
        }
        for name in ("classes", "hide"):
            names = getattr(options, name)
            values[name] = names if names is None or isinstance(names, str) else ",".join(names)
        named = {flags_of(declared[name])[0][2:].replace("-", "_"): value for name, value in values.items()}
        return {
            "seamseg_predictions": 1,
            "model": str(options.model),
            "sha256": digest(self.path),
            "settings": named,
        }


def formats_of(kind: str) -> list[str]:
    """Return the names of the formats of a kind of network, built in and of imported files."""
    return [c.name for c in components.registered("format") if kind in c.make.kinds]  # type: ignore[attr-defined]


def make_writers(
    formats: Sequence[str],
    out: Path,
    metadata: Metadata,
    kind: str = "panoptic",
    overrides: Sequence[str] = (),
    maps: Mapping[str, MapFormat] = MappingProxyType({}),
) -> list[OutputFormat[Any]]:
    """Create the writers of formats; each of `maps`, of custom heads, is one.

    InputError if the kind of network does not have one, two would write the same file, or a format cannot hold the
    classes.
    """
    known = list(dict.fromkeys((*formats_of(kind), *maps)))
    made: list[OutputFormat[Any]] = []
    owners: dict[Path, str] = {}
    for name in formats:
        if name not in known:
            raise InputError(
                f"`formats={','.join(formats)}`: a model of kind {kind} has no format {name!r}: choose among "
                f"{', '.join(known)}, separated by commas; name the file of another with `components=FILE`"
            )
        if name in maps:
            writer: OutputFormat[Any] = MapWriter(out, metadata, name, maps[name])
        else:
            component = components.find("format", name)
            with named_errors(component.section, component.module):
                writer = component.make(out, metadata, keys_of("format", name, overrides))
        with errors_of(writer):
            paths = writer.paths(Source(Path("NAME"), "NAME", "NAME"))
        for path in paths:
            if (owner := owners.setdefault(path, name)) != name:
                raise InputError(f"`formats={','.join(formats)}`: {owner} and {name} would both write {path.name}")
        made.append(writer)
    return made
