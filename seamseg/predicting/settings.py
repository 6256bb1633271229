"""What decides the outputs of `predict`: the model, its options and the formats; equal settings, equal outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from seamseg.checkpoints.model_path import digest, is_exported, local_model
from seamseg.checkpoints.names import CLASSES_NAME, CONFIG_NAME, METADATA_NAME
from seamseg.config import components
from seamseg.config.loader import load_components
from seamseg.inference.anonymize import LEAST_SCORE, NOT_LOCATED, Style
from seamseg.inference.kinds import INFERENCE_KINDS
from seamseg.inference.options import Augmentation, InferenceOptions
from seamseg.inference.predictor import Predictor, build_predictor, open_for_inference
from seamseg.predicting.folder import OutputFolder
from seamseg.predicting.manifest import Line, header
from seamseg.predicting.options import PredictOptions
from seamseg.predicting.source import Source
from seamseg.predicting.video import Video
from seamseg.predicting.writers import AnonymizeWriter, DetectionChoice, OutputFormat, formats_of, make_writers
from seamseg.utils.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import torch

_SHOWING = ("overlay", "overlay-legacy")

_SAME_OUTPUTS = {"compile", "cuda_graphs", "probabilities"}
"""Options that do not change the outputs, except for rounding; `probabilities` follows from the formats."""

_HEADER_NAMES = {"min_stuff_area": "min_area", "overrides": "set"}
"""Names in a manifest of options that have another name in Python."""


@dataclass(frozen=True)
class PredictSettings:
    """The settings of a run of `predict`, as the command line and Python pass them.

    Attributes
    ----------
    model : see :func:`seamseg.load`
    formats : names of :func:`seamseg.predicting.writers.formats_of`, as a list or separated by commas; None for
        overlay, or with `hide` for none
    config, meta : INI file and `metadata.bin`, if the model does not contain them
    inference : options of the predictor
    hide : classes to hide in a copy of each image, names as a list or separated by commas; None for no copy
    style : blur (None) or pixels
    least_score : minimum score of hidden detections, 0 to 1; None for :data:`seamseg.inference.anonymize.LEAST_SCORE`

    Raises
    ------
    InputError
        if no kind of network has a format, formats conflict with hidden or chosen classes, the style is unknown, or an
        option has no effect
    """

    model: str | Path
    formats: str | Sequence[str] | None = None
    config: str | Path | None = None
    meta: str | Path | None = None
    inference: InferenceOptions = InferenceOptions()
    hide: str | Sequence[str] | None = None
    style: Style | None = None
    least_score: float | None = None

    @staticmethod
    def of(options: PredictOptions) -> PredictSettings:
        """Return the settings of a run with these options."""
        hidden = (options.hide, options.style, options.least_score)
        return PredictSettings(options.model, options.formats, options.config, options.meta, options, *hidden)

    def __post_init__(self) -> None:
        load_components(self.inference.overrides)
        self._check_formats()
        if self.style not in (None, *get_args(Style)):
            raise InputError(f"`style={self.style}`: choose one of {', '.join(get_args(Style))}")
        if self.hide is None:
            for name in ("style", "least_score"):
                if getattr(self, name) is not None:
                    raise InputError(f"`{name}` has no effect without `hide`")
        shown = [name for name in self.format_names if name in _SHOWING]
        if self.hide is not None and shown:
            raise InputError(
                f"`formats={shown[0]}` shows what `hide` hides, under the same name: predict on the "
                "anonymised images afterwards, into another folder"
            )
        whole = self._declaring("all_classes")
        if self.inference.classes is not None and whole:
            raise InputError(f"`formats={whole[0]}` contains all classes: remove `classes`, or use another format")

    @cached_property
    def path(self) -> Path:
        """The path of the model, see :func:`seamseg.checkpoints.model_path.local_model`."""
        return local_model(self.model)

    @cached_property
    def format_names(self) -> list[str]:
        """The formats, each once."""
        if self.formats is None:
            return ["overlay"] if self.hide is None else []
        names = self.formats.split(",") if isinstance(self.formats, str) else map(str, self.formats)
        return list(dict.fromkeys(filter(None, map(str.strip, names))))

    def _check_formats(self) -> None:
        """Raise InputError if a list of formats is empty, or no kind of network has one of them."""
        known = dict.fromkeys(name for kind in INFERENCE_KINDS for name in formats_of(kind))
        unknown = next((name for name in self.format_names if name not in known), None)
        if unknown is None and (self.format_names or self.formats is None):
            return
        if unknown is not None and (is_exported(self.model) or components.registered("head")):
            # the model may have a map of this name
            return
        problem = "no format is given" if unknown is None else f"there is no format {unknown!r}"
        meant = did_you_mean(unknown or "", known) or f"; choose among {', '.join(known)}"
        raise InputError(f"`formats={_joined(self.formats)}`: {problem}{meant}")

    def _declaring(self, attribute: str) -> list[str]:
        """Return the names of the formats that declare an attribute of `OutputFormat`."""
        known = [name for name in self.format_names if components.is_registered("format", name)]
        return [name for name in known if getattr(components.find("format", name).make, attribute, False)]

    def load(self, device: str | torch.device = "auto") -> Predictor[Any]:
        """Load the model for these formats, see :func:`seamseg.inference.predictor.open_for_inference`."""
        options = self.inference
        if self._declaring("probabilities"):
            options = replace(options, probabilities=True)
        predictor = build_predictor(open_for_inference(self.path, device, self.config, self.meta, options), options)
        drawn = {*self._declaring("map_only"), *predictor.map_formats}
        predictor.map_only = predictor.kind == "panoptic" and self.hide is None and drawn.issuperset(self.format_names)
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
        self._check(predictor, sources)
        return OutputFolder(Path(out), self._writers(Path(out), predictor), self.header(predictor))

    def _check(self, predictor: Predictor[Any], sources: Sequence[Source | Video]) -> None:
        if "raw" in self.format_names and not predictor.network.uses_torch:
            raise InputError("`formats=raw`: format raw holds tensors, an exported network returns none")
        video = next((s for s in sources if isinstance(s, Video)), None)
        if "labelstudio" in self.format_names and video is not None:
            raise InputError(
                f"`formats=labelstudio`: Label Studio shows images that are files, not frames of {video.relative}; "
                "save them as images first"
            )
        if self.hide is not None and predictor.kind == "classification":
            raise InputError(f"`hide={_joined(self.hide)}`: {NOT_LOCATED}")

    def _writers(self, folder: Path, predictor: Predictor[Any]) -> list[OutputFormat[Any]]:
        made: list[OutputFormat[Any]] = []
        if self.format_names:
            choice = DetectionChoice(self.inference.score_threshold or 0.0, predictor.classes)
            given = (folder, predictor.metadata, predictor.kind, choice, self.inference.overrides)
            made = make_writers(self.format_names, *given, predictor.map_formats)
        if self.hide is not None:
            score = LEAST_SCORE if self.least_score is None else self.least_score
            # the map without a choice of classes would contain detections above this score: they are hidden, too
            map_score = 1.0 if predictor.classes is None else predictor.thresholds.score_threshold
            style = self.style or "blur"
            made.append(AnonymizeWriter(folder, predictor.metadata, self.hide, style, score, map_score))
        return made

    def header(self, predictor: Predictor[Any]) -> Line:
        """Return the first line of the manifest, with all settings that change the outputs.

        `predictor` is the result of :meth:`load`.
        """
        options = self.inference
        settings: dict[str, Any] = {"format": ",".join(self.format_names)}
        settings |= {"config": self._content("config"), "meta": self._content("meta")}
        settings |= {
            _HEADER_NAMES.get(f.name, f.name): getattr(options, f.name)
            for f in fields(InferenceOptions)
            if f.name not in _SAME_OUTPUTS
        }
        settings["set"] = list(options.overrides)
        settings["tiles"] = str(options.tiles)
        settings["tta"] = _tta_text(options.tta)
        settings["classes"] = _joined(options.classes)
        # the actual dtype: `auto` depends on the device
        settings["precision"] = predictor.network.precision
        settings |= {
            "anonymize": _joined(self.hide),
            "anonymize_style": self.style,
            "anonymize_score": self.least_score,
        }
        return header(str(self.model), digest(self.path), settings)

    def _content(self, name: str) -> str | None:
        """Return name and checksum of a file, which may change between two runs, also in the folder of the model."""
        given = getattr(self, name)
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
