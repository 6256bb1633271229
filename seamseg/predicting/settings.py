"""Settings that decide the outputs of `predict`: model, options and formats; equal settings, equal outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from seamseg.checkpoints.model_path import digest, is_exported, local_model
from seamseg.checkpoints.names import CLASSES_NAME, CONFIG_NAME, METADATA_NAME
from seamseg.config import components
from seamseg.config.loader import load_components
from seamseg.inference.anonymize import LEAST_SCORE, NOT_LOCATED, Style
from seamseg.inference.options import Augmentation, InferenceOptions
from seamseg.inference.predictor import Predictor, build_predictor, open_for_inference
from seamseg.inference.results import RESULTS
from seamseg.predicting.folder import OutputFolder
from seamseg.predicting.manifest import Line, header
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.source import Source
from seamseg.predicting.video import Video
from seamseg.predicting.writers import AnonymizeWriter, DetectionChoice, OutputFormat, formats_of, make_writers
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.options import flags_of

if TYPE_CHECKING:
    import torch

_SHOWING = ("overlay", "overlay-legacy")

_SAME_OUTPUTS = ("compile", "cuda_graphs", "probabilities")
"""Options of inference that do not change the outputs, but for rounding; `probabilities` follows from the formats."""


class PredictSettings:
    """The settings of a run of `predict`.

    Parameters
    ----------
    options : options of the run; those about the images, the device and the work have no effect on the settings

    Raises
    ------
    InputError
        if no kind of network has a format, formats conflict with hidden or chosen classes, the style is unknown, or an
        option has no effect
    """

    def __init__(self, options: PredictOptions) -> None:
        self.options = options
        load_components(options.overrides)
        self._check_formats()
        if options.style not in (None, *get_args(Style)):
            raise InputError(f"`style={options.style}`: choose one of {', '.join(get_args(Style))}")
        if options.hide is None:
            for name in ("style", "least_score"):
                if getattr(options, name) is not None:
                    raise InputError(f"`{name}` has no effect without `hide`")
        shown = [name for name in self.format_names if name in _SHOWING]
        if options.hide is not None and shown:
            raise InputError(
                f"`formats={shown[0]}` shows what `hide` hides, under the same name: predict on the "
                "anonymised images afterwards, into another folder"
            )
        whole = self._declaring("all_classes")
        if options.classes is not None and whole:
            raise InputError(f"`formats={whole[0]}` contains all classes: remove `classes`, or use another format")

    @cached_property
    def path(self) -> Path:
        """The path of the model, see :func:`seamseg.checkpoints.model_path.local_model`."""
        return local_model(self.options.model)

    @cached_property
    def format_names(self) -> list[str]:
        """The formats, each once."""
        formats = self.options.formats
        if formats is None:
            return ["overlay"] if self.options.hide is None else []
        names = formats.split(",") if isinstance(formats, str) else map(str, formats)
        return list(dict.fromkeys(filter(None, map(str.strip, names))))

    def _check_formats(self) -> None:
        """Raise InputError if a list of formats is empty, or no kind of network has one of them."""
        known = dict.fromkeys(name for result in RESULTS for kind in result.kinds for name in formats_of(kind))
        unknown = next((name for name in self.format_names if name not in known), None)
        if unknown is None and (self.format_names or self.options.formats is None):
            return
        if unknown is not None and (is_exported(self.options.model) or components.registered("head")):
            # the model may have a map of this name
            return
        problem = "no format is given" if unknown is None else f"there is no format {unknown!r}"
        meant = did_you_mean(unknown or "", known) or f"; choose among {', '.join(known)}"
        raise InputError(f"`formats={_joined(self.options.formats)}`: {problem}{meant}")

    def _declaring(self, attribute: str) -> list[str]:
        """Return the names of the formats that declare an attribute of `OutputFormat`."""
        known = [name for name in self.format_names if components.is_registered("format", name)]
        return [name for name in known if getattr(components.find("format", name).make, attribute, False)]

    def load(self, device: str | torch.device = "auto") -> Predictor[Any]:
        """Load the model for these formats, see :func:`seamseg.inference.predictor.open_for_inference`."""
        options = self.options
        if self._declaring("probabilities"):
            options = replace(options, probabilities=True)
        predictor = build_predictor(
            open_for_inference(self.path, device, options.config, options.meta, options), options
        )
        drawn = {*self._declaring("map_only"), *predictor.map_formats}
        only_maps = options.hide is None and drawn.issuperset(self.format_names)
        predictor.map_only = predictor.kind == "panoptic" and only_maps
        return predictor

    def open_folder(
        self, out: str | Path, predictor: Predictor[Any], sources: Sequence[Source | Video]
    ) -> OutputFolder:
        """Return the folder for :func:`seamseg.predicting.job.predict_all`, with the formats and the manifest header.

        Parameters
        ----------
        out : path of the folder, see :func:`seamseg.predicting.folder.output_path`
        predictor : result of :meth:`load`
        sources : all images

        Raises
        ------
        InputError
            if the model or the images do not have a format, or a class is unknown
        """
        if "raw" in self.format_names and not predictor.network.uses_torch:
            raise InputError("`formats=raw`: format raw holds tensors, an exported network returns none")
        video = next((s for s in sources if isinstance(s, Video)), None)
        if "labelstudio" in self.format_names and video is not None:
            raise InputError(
                f"`formats=labelstudio`: Label Studio shows images that are files, not frames of {video.relative}; "
                "save them as images first"
            )
        if self.options.hide is not None and predictor.kind == "classification":
            raise InputError(f"`hide={_joined(self.options.hide)}`: {NOT_LOCATED}")
        return OutputFolder(Path(out), self._writers(Path(out), predictor), self.header(predictor))

    def _writers(self, folder: Path, predictor: Predictor[Any]) -> list[OutputFormat[Any]]:
        options = self.options
        made: list[OutputFormat[Any]] = []
        if self.format_names:
            choice = DetectionChoice(options.score_threshold or 0.0, predictor.classes)
            given = (folder, predictor.metadata, predictor.kind, choice, options.overrides)
            made = make_writers(self.format_names, *given, predictor.map_formats)
        if options.hide is not None:
            score = LEAST_SCORE if options.least_score is None else options.least_score
            # the map without a choice of classes would contain detections above this score: they are hidden, too
            map_score = 1.0 if predictor.classes is None else predictor.thresholds.score_threshold
            style = options.style or "blur"
            made.append(AnonymizeWriter(folder, predictor.metadata, options.hide, style, score, map_score))
        return made

    def header(self, predictor: Predictor[Any]) -> Line:
        """Return the first line of the manifest, with all settings that change the outputs.

        `predictor` is the result of :meth:`load`. Settings have the names of their flags.
        """
        options = self.options
        declared = {field.name: field for field in fields(options)}
        inference = [field.name for field in fields(InferenceOptions) if field.name not in _SAME_OUTPUTS]
        values = {
            name: getattr(options, name)
            for name in ("formats", "config", "meta", *inference, "hide", "style", "least_score")
        }
        values |= {
            "formats": ",".join(self.format_names),
            "config": self._content("config"),
            "meta": self._content("meta"),
            "overrides": list(options.overrides),
            "tiles": str(options.tiles),
            "tta": _tta_text(options.tta),
            "classes": _joined(options.classes),
            # the actual dtype: `auto` depends on the device
            "precision": predictor.network.precision,
            "hide": _joined(options.hide),
        }
        named = {flags_of(declared[name])[0][2:].replace("-", "_"): value for name, value in values.items()}
        return header(str(options.model), digest(self.path), named)

    def _content(self, name: str) -> str | None:
        """Return name and checksum of a file, which may change between two runs, also in the folder of the model."""
        given = getattr(self.options, name)
        classes = METADATA_NAME if (self.path / METADATA_NAME).is_file() else CLASSES_NAME
        file = self.path if given is None else Path(given)
        file = file / (CONFIG_NAME if name == "config" else classes) if file.is_dir() else file
        if file.is_file() and (given is not None or self.path.is_dir()):
            return f"{file.name} {digest(file)[:12]}"
        return None if given is None else str(given)


def _joined(names: str | Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


def _tta_text(tta: str | Augmentation | None) -> str | None:
    if not isinstance(tta, Augmentation):
        return tta
    return ",".join([*(["flip"] if tta.flip else []), *(f"{scale:g}" for scale in tta.scales)])
