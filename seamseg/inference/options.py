"""Options of a predictor, of `load` and of `predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from seamseg.utils.errors import InputError
from seamseg.utils.options import option, override_texts

if TYPE_CHECKING:
    from pathlib import Path

    from seamseg.config import Config
    from seamseg.data.input_size import InputSize
    from seamseg.results.anonymize import Style
    from seamseg.results.base import Thresholds

# `seamseg predict --help` shows these options: methods import what else they need

MIN_SCALE, MAX_SCALE = 0.1, 4.0
"""Range of scales."""

AUTO_LIMIT = 16 << 20
"""Pixels of the network's input above which `auto` uses tiles: more than any default size reaches."""
AUTO_SIDE = 2048
"""Side of the tiles of `auto`."""
LEAST_SIDE = 128
"""Minimum side of tiles: smaller ones give the network too little context."""

TTA_FUSIONS = ("mean", "max", "voting")
"""How the views of a semantic network are merged, see :func:`seamseg.ops.upsample.upsample_fusion`."""


@dataclass(frozen=True)
class Tiling:
    """How large images are divided.

    `tiles` is "auto": tiles of :data:`AUTO_SIDE` if an image has more than :data:`AUTO_LIMIT` pixels at network size;
    "off": no tiles; or a number: tiles of this side if the image has more pixels than one tile. `overlap` is the
    minimum of neighbours in pixels of the network's input; None for a quarter of the side. InputError if the side is
    below :data:`LEAST_SIDE`, or the overlap negative or more than half of the side.
    """

    tiles: str | int = "auto"
    overlap: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tiles, int) and self.tiles not in ("auto", "off"):
            raise InputError(f"`tiles` must be auto, off or a side in pixels, not {self.tiles!r}")
        side = AUTO_SIDE if isinstance(self.tiles, str) else self.tiles
        if side < LEAST_SIDE:
            raise InputError(f"`tiles={side}`: too small, the side must be at least {LEAST_SIDE} pixels")
        if self.overlap is not None and not 0 <= self.overlap <= side // 2:
            raise InputError(f"`tile_overlap={self.overlap}`: must be 0 to {side // 2}, half of the side of the tiles")

    def side_for(self, size: Sequence[int]) -> int | None:
        """Return the side of the tiles of an image of `(height, width, ...)` at network size; None for no tiles."""
        pixels = size[0] * size[1]
        if isinstance(self.tiles, int):
            return self.tiles if pixels > self.tiles**2 else None
        return AUTO_SIDE if self.tiles == "auto" and pixels > AUTO_LIMIT else None

    def overlap_for(self, side: int) -> int:
        """Return the minimum overlap of tiles of a side, which may be smaller than configured."""
        return side // 4 if self.overlap is None else min(self.overlap, side // 2)


@dataclass(frozen=True)
class Augmentation:
    """The views of an image: at each of `scales` times its network size and, with `flip`, mirrored too.

    The time is multiplied by the sum of the squares of the scales, twice that with `flip`: 6.25 for `flip,0.75,1,1.25`.
    The largest scale decides the memory.
    """

    scales: tuple[float, ...] = (1.0,)
    flip: bool = False

    @staticmethod
    def parse(text: str | None) -> Augmentation | None:
        """Parse `flip`, `0.75,1.0,1.25` or `flip,0.75,1.0,1.25`; return None for a single plain view.

        InputError if a word is neither flip nor a scale between 0.1 and 4.
        """
        words = [word.strip().lower() for word in str(text or "").split(",") if word.strip()]
        try:
            scales = [float(word) for word in words if word != "flip"]
        except ValueError:
            scales = [0.0]
        if not all(MIN_SCALE <= scale <= MAX_SCALE for scale in scales):
            known = f"`flip` and scales between {MIN_SCALE} and {MAX_SCALE:g}"
            raise InputError(f"`tta={text}`: must be {known}, such as flip,0.75,1.0,1.25")
        found = Augmentation(tuple(dict.fromkeys(scales)) or (1.0,), "flip" in words)
        return None if found == Augmentation() else found

    def views(self) -> Iterator[tuple[float, bool]]:
        """Iterate over the scale of each view, and whether it is mirrored."""
        for scale in self.scales:
            for mirrored in (False, True)[: 1 + self.flip]:
                yield scale, mirrored


OF_PARTS = ("tta", "tta_fusion", "compile", "cuda_graphs", "pad_to")
"""Options that need the parts of our own networks."""
OF_RESULTS = ("score_threshold", "overlap_threshold", "min_stuff_area", "tta_fusion", "probabilities")
"""Options on which only some types of results depend, see :class:`seamseg.results.base.ImageResult`."""


_opening = partial(option, group="opening")
_fusion = partial(option, group="fusion to a panoptic map (defaults: the model's configuration)")
_size = partial(option, group="size of the network's input")
_views = partial(option, group="views and classes")
_acceleration = partial(option, group="acceleration for many images of few sizes, after a slow start")


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """Options of running a model; None for the value of the configuration. InputError if one is out of range."""

    score_threshold: float | None = _fusion("minimum score of a detection", None, "P")
    overlap_threshold: float | None = _fusion(
        "omit a detection if more than this part of it is hidden",
        None,
        "P",
    )
    min_stuff_area: int | None = _fusion(
        "minimum pixels of stuff, at network size, else void", None, "N", flags="--min-area"
    )
    shortest_size: int | None = _size("shortest side (default: as configured)", None, "N")
    size: int | None = _size(
        "resize the longest side to N, up or down; replaces `shortest_size` and `longest_max_size`", None, "N"
    )
    longest_max_size: int | None = _size(
        "maximum of the longest side, to which panoramas are shrunk (default: 4 times the shortest size, or the "
        "configured longest_max_size if that is larger)",
        None,
        "N",
    )
    tiles: str | int = _size(
        "process large images in overlapping tiles, which bounds the memory: auto, inputs above 16 Mi pixels in tiles "
        "of side 2048; N, inputs larger than a tile in tiles of side N; off, never (default: auto)",
        "auto",
        "auto|off|N",
    )
    tile_overlap: int | None = _size("overlap of tiles in pixels (default: a quarter)", None, "N")
    preview: bool = _size("half the size: a quarter of the time, small objects are missed", False)
    tta: str | None = _views(
        "test-time augmentation with several views of each image, such as flip,0.75,1.0,1.25: mirrored, and scaled by "
        "these factors; multiplies the time by the sum of their squares, twice that with flip",
        None,
        "LIST",
    )
    tta_fusion: str = _views(
        "merge the views of a semantic model by mean (of the probabilities), max (the most confident view) or voting "
        "(default: mean)",
        "mean",
        "M",
    )
    classes: str | Sequence[str] | None = _views(
        "only these classes, such as person,car; others are void", None, "LIST"
    )
    probabilities: bool = option(
        "predict the probability of the class of each pixel, too (semantic models only)", False
    )
    precision: str = _opening(
        "fp32, bf16, fp16 (GPU only), or auto: bf16 where it is fast (default: fp32)", "fp32", "P"
    )
    compile: bool = _acceleration(
        "compile the network with torch.compile: takes minutes at the start, once for all sizes (twice with torch "
        "2.11); on a CPU, which needs a C++ compiler, it is slower than the default",
        False,
    )
    cuda_graphs: bool = _acceleration(
        "GPU only: record a CUDA graph for each input size that occurs twice (the last 8 sizes); can be combined with "
        "`compile`",
        False,
    )
    pad_to: int = _acceleration(
        "pad the network's input to multiples of N, such as 128, for fewer sizes; results differ slightly near the "
        "right and lower edge (default: 1, no padding)",
        1,
        "N",
    )
    overrides: Sequence[str] | Any = option(
        'configuration keys: "section.key=value", several of these, or {"section.key": value}', (), flags="--set"
    )
    components: InitVar[str | Path | Sequence[str | Path]] = option(
        "files or modules of components that the model uses, see docs/how-to/extend.md", ()
    )

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        object.__setattr__(self, "overrides", override_texts(self.overrides, components))
        from seamseg.data.input_size import MAX_MULTIPLE

        for name in ("score_threshold", "overlap_threshold"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise InputError(f"`{name}` must be between 0 and 1, not {getattr(self, name)}")
        if (self.min_stuff_area or 0) < 0:
            raise InputError(f"`min_stuff_area` must not be negative, not {self.min_stuff_area}")
        Tiling(self.tiles, self.tile_overlap)  # it checks them
        views = Augmentation.parse(self.tta)
        if not 1 <= self.pad_to <= MAX_MULTIPLE:
            raise InputError(f"`pad_to={self.pad_to}`: must be between 1 (no padding) and {MAX_MULTIPLE}")
        if self.pad_to > 1 and views is not None:
            raise InputError("`pad_to` cannot be combined with `tta`: the padding of the views would differ")
        if self.tta_fusion not in TTA_FUSIONS:
            raise InputError(f"`tta_fusion={self.tta_fusion}`: choose one of {', '.join(TTA_FUSIONS)}")
        if self.size is not None and (self.shortest_size is not None or self.longest_max_size is not None):
            other = "longest_max_size" if self.shortest_size is None else "shortest_size"
            raise InputError(f"`size` and `{other}` are mutually exclusive")

    def changed(self, names: Iterable[str]) -> str | None:
        """Return the first of some options whose value is not the default; None if there is none."""
        defaults = {field.name: field.default for field in fields(InferenceOptions)}
        # an empty text is none, too
        return next((name for name in names if getattr(self, name) not in (defaults[name], "")), None)

    def check_overrides(self, sections: Sequence[str], problem: str) -> None:
        """Raise InputError, with a text, for an override of the kind or outside of some sections and components."""
        from seamseg.config.components import parse_section
        from seamseg.config.loader import split_override

        for override in self.overrides:
            section, key, _ = split_override(override)
            of_components = parse_section(section) is not None or (section, key) == ("general", "components")
            if not of_components and (section not in sections or (section, key) == ("general", "kind")):
                raise InputError(f"`overrides={override}`: {problem}")

    def thresholds(self, config: Config) -> Thresholds:
        """Return the thresholds for a model with a configuration, whose kind decides which are used."""
        from seamseg.results.base import Thresholds

        names = [spec.name for spec in fields(Thresholds)]
        uses = config.parts_of_kind.uses
        values = {name: getattr(config.general, name) for name in names if uses("general", name)}
        thresholds = Thresholds(**values | {name: v for name in names if (v := getattr(self, name)) is not None})
        # pixels of the network's input
        return replace(thresholds, min_stuff_area=thresholds.min_stuff_area // 4) if self.preview else thresholds

    def input_size(self, config: Config) -> InputSize:
        """Return the size of the network's input for a model with a configuration.

        The original does not limit the longest side, so that a panorama can exhaust the memory; ordinary images stay
        far below the default limit.
        """
        from seamseg.data.input_size import InputSize, reference_size

        loading, longest, limit = config.dataloader, self.size, self.longest_max_size
        if longest is None and self.shortest_size is None and limit is None:
            longest = loading.longest_size
        if longest is not None:
            if longest < 1:
                raise InputError(f"`size` must be positive, not {longest}")
            size = InputSize(longest_size=longest)
        else:
            shortest = loading.shortest_size if self.shortest_size is None else self.shortest_size
            if limit is None:
                limit = reference_size(shortest, loading.longest_max_size).longest_max_size
            assert limit is not None
            if shortest < 1 or limit < shortest:
                raise InputError(
                    f"network size: shortest {shortest} and longest {limit} pixels; both must be positive and the "
                    "longest not below the shortest"
                )
            size = InputSize(shortest, limit)
        return size.halved() if self.preview else size

    def input_size_of_authors(self, config: Config) -> InputSize:
        """Return the input size of a network of another library: without other options, as in its configuration."""
        loading, longest = config.dataloader, self.longest_max_size
        if longest is None and self.shortest_size is None and self.size is None and loading.longest_size is None:
            # the limit of our own networks is larger
            longest = loading.longest_max_size
        return replace(self, longest_max_size=longest).input_size(config)


MODEL = "zip, folder, snapshot, torchvision:NAME, hf://user/repo, or a program you trust: .onnx, .pt2"
device_option = partial(
    _opening, "auto (a GPU if there is one), cpu, cuda or cuda:N; for .onnx cpu or openvino (default: auto)", "auto"
)
config_option = partial(_opening, "INI file, if the model does not contain one", None, "F")
meta_option = partial(
    _opening,
    "metadata.bin, if the model does not contain one; for a network of transformers also a class list or the JSON of "
    "COCO categories",
    None,
    "F",
)


@dataclass(frozen=True)
class LoadOptions(InferenceOptions):
    """Options of :func:`seamseg.load`."""

    model: str | Path = option(MODEL)
    device: Any = device_option()
    config: str | Path | None = config_option()
    meta: str | Path | None = meta_option()


LABELS = "format overlay.labels=yes"
"""The override of `--labels`."""

_hiding, _run = partial(option, group="anonymisation"), partial(option, group="run")


@dataclass(frozen=True)
class PredictOptions(InferenceOptions):
    """Options of :func:`seamseg.predict`; InputError if one is out of range."""

    model: str | Path = option(MODEL)
    inputs: str | Path | Sequence[str | Path] = option(
        "image, folder, glob, list or video; one or several", metavar="IN", several="words"
    )
    out: str | Path = option("folder for the outputs (created); for one video also a file, .mp4, .mov or .mkv")
    formats: str | Sequence[str] | None = option(
        "formats of the outputs (default: overlay; with `hide` none)",
        None,
        "LIST",
        flags="--format",
    )
    device: str = device_option()
    config: str | Path | None = config_option()
    meta: str | Path | None = meta_option()
    _: KW_ONLY
    hide: str | Sequence[str] | None = _hiding(
        "classes to hide, such as person,rider,car", None, "LIST", flags="--anonymize"
    )
    style: Style | None = _hiding("default: blur", None, choices=("blur", "pixels"), flags="--anonymize-style")
    least_score: float | None = _hiding(
        "minimum score of hidden detections (default: 0.2, lower than for the panoptic map, to be safe)",
        None,
        "P",
        flags="--anonymize-score",
    )
    batch_size: int | None = _run(
        "maximum number of images of equal network size computed together (default: 4 on a GPU, else 1)", None, "N"
    )
    workers: int | None = _run(
        "threads that decode; with 0 or 1 none ahead (default: one per core up to 4, or a quarter of the cores; 0 for "
        "a single image, or if the first has 33 megapixels or more)",
        None,
        "N",
    )
    limit: int | None = _run("only the first N images, and the first N frames of each video", None, "N")
    restart: bool = _run("process all images again, and replace earlier outputs", False)

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        super().__post_init__(components)
        for name in ("limit", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}={value}`: must be at least 1")
        if self.workers is not None:
            from seamseg.utils.parallel import check_workers  # not for --help

            check_workers(self.workers)
        if self.style not in (None, "blur", "pixels"):
            raise InputError(f"`style={self.style}`: choose one of blur, pixels")
        if self.least_score is not None and not 0 <= self.least_score <= 1:
            raise InputError(f"`least_score` must be between 0 and 1, not {self.least_score}")
        for name in ("style", "least_score"):
            if self.hide is None and getattr(self, name) is not None:
                raise InputError(f"`{name}` has no effect without `hide`")
