"""The folder of the outputs of `predict`, the settings that decide them, and the manifest, by which a run is resumed.

`predictions.jsonl` has a line for each image that is done. The first line names the model and the settings. All
processes append to the file; a line is written in one piece when the outputs of its image are in place. So a kill or a
full disk can tear only the last line of a process, which is no line then: its image is processed again. At the end of a
run the lines are sorted by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import seamseg.predicting.writers  # noqa: F401  # they register the formats
from seamseg.checkpoints.model_path import CLASSES_NAME, CONFIG_NAME, METADATA_NAME, digest, library_of, local_model
from seamseg.config import components
from seamseg.config.loader import config_from_string, load_components, split_override
from seamseg.inference.options import LABELS, InferenceOptions, PredictOptions
from seamseg.inference.predictor import Predictor, build_predictor, open_for_inference
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import MANIFEST, MapFormat
from seamseg.predicting.source import Source, Video
from seamseg.predicting.writers.images import AnonymizeWriter, OutputFormat
from seamseg.predicting.writers.predictions import MapWriter
from seamseg.results.anonymize import LEAST_SCORE, NOT_LOCATED
from seamseg.utils.errors import InputError, describe_error, did_you_mean, named_errors
from seamseg.utils.files import cannot_write, replacing, write_atomically
from seamseg.utils.options import flags_of

if TYPE_CHECKING:
    import torch

LOCK_NAME = ".predictions.lock"

Line = dict[str, Any]

Done = dict[str, tuple[str, str]]
"""The images that are done, by name: the path relative to the input, and the stamp of the file."""


def differences(old: Line, new: Line) -> list[str]:
    """Describe the differences of two headers; empty if a run may continue the other."""

    def shown(value: Any) -> Any:
        # overrides as their texts
        return value if not isinstance(value, list) else " ".join(map(str, value)).replace(LABELS, "--labels") or None

    found = []
    if old["sha256"] != new["sha256"]:
        same = " before it changed" if old["model"] == new["model"] else f" (now {new['model']})"
        found.append(f"the model {old['model']}{same}")
    # through JSON, which makes lists of tuples
    before, now = old["settings"], json.loads(json.dumps(new["settings"]))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            found.append(f"{key} {shown(before.get(key))} (now {shown(now.get(key))})")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line of a manifest after the first; torn ones are left out."""
    with open(path, "rb") as file:
        offset = len(file.readline())
        for data in file:
            with suppress(ValueError):
                yield offset, json.loads(data)
            offset += len(data)


@dataclass
class OutputFolder:
    """The folder, the formats that write there, and the manifest; `head` is its first line.

    `names` has the images with a line by this process; True if it is done. `bar` shows their number.
    """

    out: Path
    writers: Sequence[OutputFormat[Any]]
    head: Line
    names: dict[str, bool] = field(default_factory=dict)
    bar: Any = None

    @property
    def manifest(self) -> Path:
        """Its file."""
        return self.out / MANIFEST

    def check_names(self, sources: Sequence[Source | Video]) -> None:
        """Raise InputError if an output would overwrite an input, or two images would have one output."""
        real = lru_cache(4096)(os.path.realpath)  # fast for a million files in few folders
        images = [source for source in sources if isinstance(source, Source)]
        inputs = {(real(source.path.parent), source.path.name) for source in images}
        for writer in self.writers:
            owners: dict[Path, Source] = {}
            for source in images:
                for path in writer.paths(source):
                    if (real(path.parent), path.name) in inputs:
                        raise InputError(
                            f"{path}: this output would overwrite an input image; choose another output folder"
                        )
                    if (owner := owners.setdefault(path, source)) is not source:
                        raise InputError(
                            f"{owner.path} and {source.path} would both be written to {path}: this format has no "
                            "sub-folders; give them different names or predict each folder into an output folder of "
                            "its own"
                        )
            video = next((source for source in sources if isinstance(source, Video)), None)
            if video is not None and len(sources) > 1:
                # how many frames it has is not known, but their names start with its folder
                a, b = (writer.paths(Source(Path("x"), f"{folder}/x", "x")) for folder in "ab")
                if a and a == b:
                    raise InputError(
                        f"{video.name}: frames of several videos could share {a[0]}, since this format has no "
                        "sub-folders; predict each into an output folder of its own"
                    )

    def begin(self, sources: Sequence[Source | Video], restart: bool = False) -> Done:
        """Begin the manifest, or continue one: return the images whose outputs exist, by name.

        InputError if it is of another model or other settings, or a file that no manifest lists would be overwritten.
        """
        # a new folder needs no look-up of a million file names
        if not restart and any(name != LOCK_NAME for name in os.listdir(self.out)):
            if self.manifest.exists():
                try:
                    return self._continued()
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise InputError(
                        f"{self.manifest}: damaged, or not a manifest of `seamseg predict` ({describe_error(error)}); "
                        "`restart=True` replaces it"
                    ) from error
            images = [source for source in sources if isinstance(source, Source)]
            for writer in self.writers:
                for path in (*writer.finals(), *(path for source in images for path in writer.paths(source))):
                    if os.path.exists(path):
                        raise InputError(
                            f"{path}: exists already, and no {MANIFEST} lists it as an output of `seamseg predict`; "
                            "choose another folder for the outputs, or overwrite it with `restart=True`"
                        )
        write_atomically(self.manifest, (json.dumps(self.head, allow_nan=False) + "\n").encode())
        return {}

    def _continued(self) -> Done:
        with open(self.manifest, "rb+") as file:
            if found := differences(json.loads(file.readline()), self.head):
                raise InputError(
                    f"{self.out}: holds predictions of another run: {', '.join(found)}; choose another folder, or "
                    "start over with `restart=True`"
                )
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a torn line: the next one starts after it
                file.write(b"\n")
        done: Done = {}
        for _, line in read_lines(self.manifest):
            done.pop(line["name"], None)
            if line["status"] == "ok" and all((self.out / output).is_file() for output in line["outputs"]):
                done[line["name"]] = line["relative"], line["stamp"]
        return done

    def add(self, line: Line) -> None:
        """Append a line with at least `name` and `status`, in any thread; SeamsegError if it cannot be written."""
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            with open(self.manifest, "ab", buffering=0) as file:
                if (written := file.write(data)) < len(data):
                    file.write(data[written:])  # the disk is full: this raises the error
        except OSError as error:
            raise cannot_write(self.manifest, error) from error
        self.names[line["name"]] = line["status"] == "ok"
        if self.bar is not None:
            with self.bar.get_lock():
                self.bar.update()

    def finish(self) -> None:
        """Sort the manifest, and write the files about all images; called by the main process at the end."""
        # the last line of an image counts
        places = {line["name"]: offset for offset, line in read_lines(self.manifest)}
        with open(self.manifest, "rb") as file, replacing(self.manifest) as temporary, open(temporary, "wb") as target:
            target.write(file.readline())
            for name in sorted(places):
                file.seek(places[name])
                target.write(file.readline())
        for position, writer in enumerate(self.writers):
            try:
                writer.finish(partial(self._records, position))
            except OSError as error:
                if components.at_fault(error) is not None:
                    raise
                raise cannot_write(error.filename or "output", error) from error

    def _records(self, position: int) -> Iterator[Any]:
        for _, line in read_lines(self.manifest):
            if line["status"] == "ok" and (record := line["records"][position]) is not None:
                yield record


_SAME_OUTPUTS = ("compile", "cuda_graphs", "probabilities")
"""Options of inference that do not change the outputs, but for rounding; `probabilities` follows from the formats."""


class PredictSettings:
    """The settings of a run by its options; InputError for what is wrong whatever the model is.

    `path` is that of the model after :meth:`load`.
    """

    path: Path

    def __init__(self, options: PredictOptions) -> None:
        self.options = options
        if options.overrides:
            load_components(options.overrides)
        self.format_names = ["overlay"] if options.hide is None else []
        if options.formats is not None:
            text = options.formats if isinstance(options.formats, str) else ",".join(map(str, options.formats))
            self.format_names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
            known = dict.fromkeys(c.name for c in components.registered("format"))
            networks = (c.make for c in components.registered("network"))
            known |= dict.fromkeys(name for make in networks for name in getattr(make, "outputs", ()))
            unknown = next((name for name in self.format_names if name not in known), None)
            # the model may have a map of this name
            custom = library_of(options.model) == "exported" or components.registered("head")
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

    def load(self, device: str | torch.device = "auto") -> Predictor[Any]:
        """Load the model for these formats, see :func:`seamseg.inference.predictor.open_for_inference`."""
        options, self.path = self.options, local_model(self.options.model)
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
            if writer.of_torch and not predictor.network.uses_torch:
                raise InputError(f"`formats={name}`: format {name} holds tensors, an exported network returns none")
            if writer.of_files and video is not None:
                raise InputError(
                    f"`formats={name}`: format {name} names images that are files, not frames of {video.relative}; "
                    "save them as images first"
                )
        if options.hide is not None:
            if not predictor.result_type.located:
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
    made: list[OutputFormat[Any]] = []
    owners: dict[Path, str] = {}
    for name in formats:
        of_kind = (c for c in components.registered("format") if c.name == name and kind in c.make.kinds)  # type: ignore[attr-defined]
        if name in maps:
            writer: OutputFormat[Any] = MapWriter(out, metadata, name, maps[name])
        elif (component := next(of_kind, None)) is not None:
            given = [override for override in overrides if split_override(override)[0] == component.section]
            keys = config_from_string("", None, "", given).parts[component.section] if given else component.keys()
            with nullcontext() if component.built_in else named_errors(component.section, component.module):
                writer = component.make(out, metadata, keys)
        else:
            known = dict.fromkeys((*formats_of(kind), *maps))
            raise InputError(
                f"`formats={','.join(formats)}`: a model of kind {kind} has no format {name!r}: choose among "
                f"{', '.join(known)}, separated by commas; name the file of another with `components=FILE`"
            )
        for path in writer.paths(Source(Path("NAME"), "NAME", "NAME")):
            if (owner := owners.setdefault(path, name)) != name:
                raise InputError(f"`formats={','.join(formats)}`: {owner} and {name} would both write {path.name}")
        made.append(writer)
    return made
