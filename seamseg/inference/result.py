"""The result of a prediction: a panoptic map with its classes and photo, which can be drawn and saved."""

from __future__ import annotations

import difflib
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from seamseg.data.images import MAX_PIXELS, open_image
from seamseg.formats.coco_writer import CocoPanopticWriter, encode_panoptic
from seamseg.formats.id_png import id_image
from seamseg.formats.metadata import Metadata
from seamseg.inference.anonymize import LEAST_SCORE, Style, hide_classes
from seamseg.panoptic_map import VOID, PanopticResult, Segment, class_infos
from seamseg.structures import Prediction
from seamseg.utils.errors import InputError, SeamsegError, option
from seamseg.utils.files import replacing, write_atomically
from seamseg.utils.limits import MODEL_METADATA_BYTES, check_member, check_method, packed_size, parse_json
from seamseg.visualize import draw_overlay
from seamseg.visualize.overlay import encode_thumbnail, figure_html

if TYPE_CHECKING:
    import supervision

OVERLAY_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""File endings for which :meth:`Panoptic.save` writes the overlay."""

SourceImage = Path | Image.Image | None


@dataclass(frozen=True)
class NamedSegment(Segment):
    """A segment with the `name` of its class."""

    name: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Panoptic(PanopticResult):
    """The panoptic map of a photo, at the size of the photo.

    Attributes
    ----------
    id_map : `H x W` int32, the segment of each pixel, 0 void
    segments : id, class `name` and index `category`, score, area and box of each, see :class:`NamedSegment`
    metadata : names, colours and ids of the classes
    prediction : output of the network before the fusion, in pixels of its input; None in a loaded result
    source : path or copy of the photo, if it is kept

    Notes
    -----
    Two results are equal if their maps and segments are. A result can be pickled, with its photo, or with the path of a
    photo that is a file.

    Examples
    --------
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [(s.name, s.score, s.area) for s in result.segments]  # doctest: +SKIP
    [('car', 0.98, 5321), ('road', None, 201334)]
    >>> result.id_map == result.segments[0].id  # the pixels of the first segment  # doctest: +SKIP
    >>> result.save("street_overlay.jpg")  # doctest: +SKIP
    """

    metadata: Metadata = field(default_factory=lambda: Metadata(0, 0, [], [], []))
    prediction: Prediction | None = None
    source: SourceImage = None

    segments: list[NamedSegment]  # type: ignore[assignment]

    @staticmethod
    def of(
        result: PanopticResult, metadata: Metadata, photo: SourceImage = None, prediction: Prediction | None = None
    ) -> Panoptic:
        """Return a result with the names of its classes, and with its photo and prediction if given."""
        named = [_named(s, metadata) for s in result.segments]
        compact = None if prediction is None else _compact(prediction)
        return Panoptic(result.id_map, named, metadata.without_images(), compact, photo)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PanopticResult):
            return NotImplemented
        return np.array_equal(self.id_map, other.id_map) and self.segments == other.segments

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        height, width = self.size
        counts = Counter(s.name for s in self.segments if s.isthing)
        things = [f"{n} {name}" for name, n in counts.most_common()]
        stuff = [s.name for s in sorted(self.segments, key=lambda s: -s.area) if not s.isthing]
        return f"Panoptic({width} x {height}: {', '.join(things + stuff) or 'no segments'})"

    @property
    def photo(self) -> np.ndarray | None:
        """The photo, uint8 `H x W x 3` RGB, upright; None if the result has none.

        Raises
        ------
        InputError
            if the photo is a file that no longer exists, or has another size now
        """
        if self.source is None:
            return None
        rgb = np.asarray(open_image(self.source) if isinstance(self.source, Path) else self.source)
        if rgb.shape[:2] != self.size:
            height, width = self.size
            raise InputError(
                f"{self.source}: the photo is now {rgb.shape[1]} x {rgb.shape[0]} pixels, the result is of "
                f"{width} x {height}: the file has changed"
            )
        return rgb

    @property
    def classes(self) -> np.ndarray:
        """The class index of each pixel (into `metadata.categories`), `H x W` uint8, 255 for void."""
        lookup = np.full(max(int(self.id_map.max(initial=0)), *(s.id for s in self.segments), 0) + 1, VOID, np.uint8)
        for segment in self.segments:
            lookup[segment.id] = segment.category
        lookup[0] = VOID
        return lookup[self.id_map]

    def mask(self, segment: int | Segment) -> np.ndarray:
        """Return the mask of a segment, given by itself or its id, `H x W` bool."""
        return self.id_map == (segment.id if isinstance(segment, Segment) else segment)

    def only(self, classes: str | Sequence[str]) -> Panoptic:
        """Return the result with some classes only; pixels of others are void.

        Parameters
        ----------
        classes : names, as a list or separated by commas, see :func:`seamseg.inference.result.choose_classes`

        Examples
        --------
        >>> len(result.only("car,truck").segments)  # doctest: +SKIP
        """
        kept = only_classes(self, choose_classes(classes, self.metadata))
        return replace(self, id_map=kept.id_map, segments=[_named(s, self.metadata) for s in kept.segments])

    def draw(
        self,
        photo: np.ndarray | Image.Image | None = None,
        labels: bool = True,
        opacity: float = 0.5,
        outlined: bool = True,
        classes: str | Sequence[str] | None = None,
    ) -> Image.Image:
        """Draw the segments over the photo.

        Parameters
        ----------
        photo : to draw on, of any size; None for the result's own, or a black image if it has none
        labels : write class and score on large segments
        opacity : of the colours, 0 to 1
        outlined : draw a contour around each thing
        classes : names of the classes to draw; None for all

        Examples
        --------
        >>> result.draw(opacity=0.3, classes="person,rider").show()  # doctest: +SKIP
        """
        if not 0 <= opacity <= 1:
            raise InputError(f"opacity must be between 0 and 1, not {opacity}")
        shown = self if classes is None else self.only(classes)
        given = photo.convert("RGB") if isinstance(photo, Image.Image) else photo
        rgb = self.photo if given is None else np.asarray(given)
        if rgb is None:
            rgb, opacity = np.zeros((*self.size, 3), np.uint8), 1.0
        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
            raise InputError(f"a photo to draw on must be H x W x 3 uint8 RGB, this one is {rgb.shape} {rgb.dtype}")
        names = self.metadata.categories
        return Image.fromarray(draw_overlay(rgb, shown, self.metadata.palette, names, labels, opacity, outlined))

    def anonymize(
        self, classes: str | Sequence[str], style: Style = "blur", least_score: float = LEAST_SCORE
    ) -> Image.Image:
        """Return the photo with everything that may belong to some classes made unrecognisable.

        Parameters
        ----------
        classes : names; include related classes, as `person,rider`
        style : "blur" or "pixels"
        least_score : of detections that are hidden, see :func:`seamseg.inference.anonymize.private_regions`

        Raises
        ------
        InputError
            if a name is unknown, or the result has no photo

        Examples
        --------
        >>> result.anonymize("person,rider,car").save("street_private.jpg")  # doctest: +SKIP
        """
        chosen = choose_classes(classes, self.metadata)
        rgb = self.photo
        if rgb is None:
            raise InputError("this result has no photo to anonymise: predict with keep_photo=True")
        return Image.fromarray(
            hide_classes(rgb, self, self.prediction, chosen, self.metadata.num_stuff, style, least_score)
        )

    def to_coco(self, image_id: int | str = 0, file_name: str | None = None) -> tuple[dict[str, Any], Image.Image]:
        """Return the annotation of the COCO panoptic format, and its image of ids (R + 256 G + 65536 B).

        Crowds (pixels of things that belong to no detection) are void: predictions of the format have no crowds.

        Parameters
        ----------
        image_id : id of the photo in the list of images
        file_name : of the id image, `<image_id>.png` by default

        Examples
        --------
        >>> annotation, id_map = result.to_coco(17)  # doctest: +SKIP
        >>> annotation["segments_info"][0]["category_id"]  # doctest: +SKIP
        """
        segments = [s for s in self.segments if not s.iscrowd]
        annotation, ids = encode_panoptic(
            image_id, self.id_map, segments, class_infos(self.metadata), self.metadata.palette
        )
        if file_name is not None:
            annotation["file_name"] = file_name
        return annotation, id_image(ids)

    def to_supervision(self, stuff: bool = False) -> supervision.Detections:
        """Return `supervision.Detections`: boxes, masks, class indices, scores, and `class_name` in its data.

        Parameters
        ----------
        stuff : include stuff classes, such as road and sky, with confidence 1; crowds, which have no score, are omitted

        Raises
        ------
        SeamsegError
            if the library is not installed

        Examples
        --------
        >>> import supervision as sv  # doctest: +SKIP
        >>> sv.MaskAnnotator().annotate(result.photo.copy(), result.to_supervision())  # doctest: +SKIP
        """
        try:
            import supervision
        except ImportError as error:
            raise SeamsegError("to_supervision() needs the library: pip install supervision") from error
        shown = [s for s in self.segments if not s.iscrowd and (stuff or s.isthing)]
        boxes = np.array([s.box for s in shown], np.float32).reshape(-1, 4)
        masks = np.stack([self.mask(s) for s in shown]) if shown else np.zeros((0, *self.size), bool)
        return supervision.Detections(
            xyxy=boxes[:, [1, 0, 3, 2]],
            mask=masks,
            confidence=np.array([1.0 if s.score is None else s.score for s in shown], np.float32),
            class_id=np.array([s.category for s in shown], int),
            data={"class_name": np.array([s.name for s in shown], dtype=str)},
        )

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result atomically, in the format that the ending of the path selects.

        Parameters
        ----------
        path : `.jpg`, `.png` or `.webp` for the overlay; `.json` for the COCO panoptic format (the id image is written
            to a folder of the same name, as usual for the format); `.npz` for :meth:`load`
        **options : of :meth:`draw`, for overlays

        Returns
        -------
        path : as given

        Raises
        ------
        InputError
            if the ending is not supported
        SeamsegError
            if the file cannot be written
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending in OVERLAY_FORMATS:
            image = self.draw(**options)
            more = {"quality": 92} if ending != ".png" else {}
            with replacing(path) as temporary:
                image.save(temporary, OVERLAY_FORMATS[ending], **more)
        elif ending not in (".json", ".npz"):
            raise InputError(f"{path}: results are saved as {', '.join([*OVERLAY_FORMATS, '.json', '.npz'])}")
        elif options:
            raise InputError(f"{path}: {', '.join(options)}: options for overlays only")
        elif ending == ".json":
            writer = CocoPanopticWriter(path, self.metadata)
            name = self.source.name if isinstance(self.source, Path) else None
            writer.add(path.stem, self, name)
            writer.write_json()
        else:
            classes = asdict(self.metadata)
            content = {"version": 1, "segments": [asdict(s) for s in self.segments], "classes": classes}
            buffer = BytesIO()
            np.savez_compressed(buffer, id_map=self.id_map, facts=np.array(json.dumps(content)))
            write_atomically(path, buffer.getvalue())
        return path

    @staticmethod
    def load(path: str | Path, photo: str | Path | None = None) -> Panoptic:
        """Load a `.npz` file from :meth:`save`; nothing in the file is executed.

        Parameters
        ----------
        path : of the file
        photo : path of its photo, to draw on

        Raises
        ------
        InputError
            if the file is missing, broken or of another kind
        """
        try:
            with zipfile.ZipFile(path) as archive:
                content = parse_json(str(_array(archive, "facts", MODEL_METADATA_BYTES)))
                id_map = _array(archive, "id_map", 4 * MAX_PIXELS + 1024)
            classes = content["classes"]
            classes["palette"] = [tuple(rgb) for rgb in classes["palette"]]
            segments = [NamedSegment(**{**s, "box": tuple(s["box"])}) for s in content["segments"]]
            if id_map.ndim != 2 or id_map.dtype != np.int32:
                raise ValueError(f"its map is {id_map.shape} {id_map.dtype}")
            result = Panoptic(id_map, segments, Metadata(**classes), None, None if photo is None else Path(photo))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            RuntimeError,
            MemoryError,
            *_BROKEN_ZIP,
        ) as error:
            raise InputError(f"{path}: not a result saved as .npz: {error}") from None
        return result

    def _repr_png_(self) -> bytes:
        return encode_thumbnail(self._overlay())

    def _repr_html_(self) -> str:
        shares = [(s.name, s.category, s.isthing and not s.iscrowd, s.area / self.id_map.size) for s in self.segments]
        return figure_html(self._overlay(), repr(self), shares, self.metadata.palette)

    def _overlay(self) -> Image.Image:
        try:
            return self.draw()
        except InputError:  # the file of the photo may have moved
            return replace(self, source=None).draw()


_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error)


def _array(archive: zipfile.ZipFile, name: str, limit: int) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    # a map of a single segment is a thousand times its size in the file
    name = f"{archive.filename}:{info.filename}"
    check_method(info)
    check_member(name, packed_size(archive, info), info.file_size, limit, "result", free=limit)
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def choose_classes(names: str | Sequence[str], metadata: Metadata, parameter: str = "classes") -> list[int]:
    """Return the indices of classes by their names, in ascending order.

    Case, blanks, `-` and `_` are ignored. Names of Vistas have parts (`human--rider--bicyclist`): one part, or several
    consecutive ones, such as `rider` or `human--rider`, select all classes that contain them.

    Parameters
    ----------
    names : a list, or one text separated by commas
    metadata : the classes
    parameter : its name, for errors

    Raises
    ------
    InputError
        if there are none, or the model has no such class; the error suggests similar names
    """
    words = [w.strip() for w in (names.split(",") if isinstance(names, str) else names)]
    words = [w for w in words if w]
    if not words:
        raise InputError(f"{option(parameter)}: no class is given")
    keys = [_key(name) for name in metadata.categories]
    chosen: set[int] = set()
    for word in words:
        found = [k for k, key in enumerate(keys) if _holds(key, _key(word))]
        if not found:
            near = _suggestion(word, metadata.categories)
            raise InputError(f"{option(parameter)}: the model has no class {word!r}; {near}")
        chosen.update(found)
    return sorted(chosen)


def _key(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"[\s_-]+", " ", part).strip() for part in name.casefold().split("--"))


def _holds(name: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(name[k : k + len(part)] == part for k in range(len(name) - len(part) + 1))


def _suggestion(word: str, categories: Sequence[str]) -> str:
    parts = {part: " ".join(_key(part)) for name in categories for part in (name, *name.split("--"))}
    key = " ".join(_key(word))
    near = difflib.get_close_matches(key, parts.values(), n=3, cutoff=0.6)
    meant = list(dict.fromkeys(part for wanted in near for part, text in parts.items() if text == wanted))[:3]
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return f"its classes are {', '.join(categories)}"


def only_classes(result: PanopticResult, classes: Sequence[int]) -> PanopticResult:
    """Return a result with the segments of some classes (indices) only; other pixels are void."""
    kept = [s for s in result.segments if s.category in set(classes)]
    present = np.zeros(max(int(result.id_map.max(initial=0)), *(s.id for s in result.segments), 0) + 1, bool)
    present[[s.id for s in kept]] = True
    present[0] = False
    return PanopticResult(np.where(present[result.id_map], result.id_map, 0), kept)


def _named(segment: Segment, metadata: Metadata) -> NamedSegment:
    values = {f.name: getattr(segment, f.name) for f in fields(Segment)}
    return NamedSegment(**values, name=metadata.categories[segment.category])


def _compact(p: Prediction) -> Prediction:
    """Copy a prediction in as few bytes as possible; slices would keep the whole batch alive."""
    return Prediction(
        p.boxes.clone(),
        p.classes.clone(),
        p.scores.clone(),
        None if p.mask_logits is None else p.mask_logits.clone(),
        None if p.semantic is None else p.semantic.to(torch.uint8, copy=True),
        p.size,
    )
