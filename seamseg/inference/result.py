"""What `predict` hands back: a panoptic map that knows its classes and its photo, and can show and save itself."""

from __future__ import annotations

import json
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
from seamseg.inference.class_names import choose_classes
from seamseg.panoptic_map import VOID, PanopticResult, Segment, class_infos
from seamseg.structures import Prediction
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import replacing, write_atomically
from seamseg.utils.limits import MODEL_METADATA_BYTES, check_member, check_method, packed_size, parse_json
from seamseg.visualize import draw_overlay
from seamseg.visualize.overlay import encode_thumbnail, figure_html

if TYPE_CHECKING:
    import supervision

PICTURES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""Endings of :meth:`Panoptic.save` that write the overlay."""

Photo = Path | Image.Image | None


@dataclass(frozen=True)
class NamedSegment(Segment):
    """A segment that knows the `name` of its class."""

    name: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Panoptic(PanopticResult):
    """The panoptic map of a photo, at the size of the photo.

    Attributes
    ----------
    id_map : `H x W` int32, the segment of each pixel, 0 void
    segments : id, class `name` and index `category`, score, area and box of each, see :class:`NamedSegment`
    metadata : names, colours and ids of the classes
    prediction : what the network said before the fusion, in pixels of its input; None in a result that was loaded

    Notes
    -----
    Two results are equal if their maps and segments are. A result can be pickled, its photo goes along; of a photo that
    was a file only the path does.

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
    source: Photo = None

    segments: list[NamedSegment]  # type: ignore[assignment]

    @staticmethod
    def of(
        result: PanopticResult, metadata: Metadata, photo: Photo = None, prediction: Prediction | None = None
    ) -> Panoptic:
        """A result with the classes it speaks of, and with its photo if one is at hand."""
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
        """The photo, uint8 `H x W x 3` RGB, upright; None if the result was made or loaded without it.

        Raises
        ------
        InputError
            if the photo was a file that is no longer there, or has another size now
        """
        if self.source is None:
            return None
        rgb = np.asarray(open_image(self.source) if isinstance(self.source, Path) else self.source)
        if rgb.shape[:2] != self.size:
            height, width = self.size
            raise InputError(
                f"{self.source}: the photo is now {rgb.shape[1]} x {rgb.shape[0]} pixels, the result is of "
                f"{width} x {height}: it was changed since"
            )
        return rgb

    @property
    def classes(self) -> np.ndarray:
        """`H x W` uint8, the class index of each pixel (into `metadata.categories`), 255 for void."""
        lookup = np.full(max(int(self.id_map.max(initial=0)), *(s.id for s in self.segments), 0) + 1, VOID, np.uint8)
        for segment in self.segments:
            lookup[segment.id] = segment.category
        lookup[0] = VOID
        return lookup[self.id_map]

    def mask(self, segment: int | Segment) -> np.ndarray:
        """`H x W` bool, the pixels of a segment or of a segment's id."""
        return self.id_map == (segment.id if isinstance(segment, Segment) else segment)

    def only(self, classes: str | Sequence[str]) -> Panoptic:
        """The result with some classes alone; the pixels of others are void.

        Parameters
        ----------
        classes : names, as a list or with commas between, see :func:`seamseg.inference.class_names.choose_classes`

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
        """The photo under the colours of its segments.

        Parameters
        ----------
        photo : to draw on, of any size; None for the result's own. Without any the colours are drawn alone
        labels : write class and score on segments that are large enough
        opacity : of the colours, 0 to 1
        outlined : draw a line around each thing
        classes : only these

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
        """The photo with all that may be of some classes made unrecognisable.

        Parameters
        ----------
        classes : names; remember neighbours in meaning, as `person,rider`
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
        """The annotation of COCO's panoptic format, and its picture of ids (R + 256 G + 65536 B).

        Crowds, things that no detection explains, are void, since the format has no word for them in predictions.

        Parameters
        ----------
        image_id : of the photo in your list of images
        file_name : of the picture, `<image_id>.png` by default

        Examples
        --------
        >>> annotation, picture = result.to_coco(17)  # doctest: +SKIP
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
        """As `supervision.Detections`: boxes, masks, class indices, scores, and `class_name` in its data.

        Parameters
        ----------
        stuff : with road, sky and so on, whose confidence is 1; crowds, which have no score, are left out

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
        """Write the result, whole or not at all; the ending says what.

        Parameters
        ----------
        path : `.jpg`, `.png` or `.webp` for the overlay; `.json` for COCO's panoptic format (the picture of ids goes to
            a folder of the same name, where its readers look for it); `.npz` for :meth:`load`
        **options : of :meth:`draw`, for pictures

        Returns
        -------
        the path

        Raises
        ------
        InputError
            if the ending is another
        SeamsegError
            if the file cannot be written
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending in PICTURES:
            picture = self.draw(**options)
            more = {"quality": 92} if ending != ".png" else {}
            with replacing(path) as temporary:
                picture.save(temporary, PICTURES[ending], **more)
        elif ending not in (".json", ".npz"):
            raise InputError(f"{path}: results are saved as {', '.join([*PICTURES, '.json', '.npz'])}")
        elif options:
            raise InputError(f"{path}: {', '.join(options)} only matter to pictures")
        elif ending == ".json":
            writer = CocoPanopticWriter(path, self.metadata)
            name = self.source.name if isinstance(self.source, Path) else None
            writer.add(path.stem, self, name)
            writer.write_json()
        else:
            classes = asdict(self.metadata)
            facts = {"version": 1, "segments": [asdict(s) for s in self.segments], "classes": classes}
            buffer = BytesIO()
            np.savez_compressed(buffer, id_map=self.id_map, facts=np.array(json.dumps(facts)))
            write_atomically(path, buffer.getvalue())
        return path

    @staticmethod
    def load(path: str | Path, photo: str | Path | None = None) -> Panoptic:
        """Read what :meth:`save` wrote as `.npz`; nothing in the file is executed.

        Parameters
        ----------
        path : of the file
        photo : its photo, for pictures

        Raises
        ------
        InputError
            if the file is missing, broken or something else
        """
        try:
            with zipfile.ZipFile(path) as archive:
                facts = parse_json(str(_array(archive, "facts", MODEL_METADATA_BYTES)))
                id_map = _array(archive, "id_map", 4 * MAX_PIXELS + 1024)
            classes = facts["classes"]
            classes["palette"] = [tuple(rgb) for rgb in classes["palette"]]
            segments = [NamedSegment(**{**s, "box": tuple(s["box"])}) for s in facts["segments"]]
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
            raise InputError(f"{path}: not a result that was saved as .npz: {error}") from None
        return result

    def _repr_png_(self) -> bytes:
        return encode_thumbnail(self._picture())

    def _repr_html_(self) -> str:
        shares = [(s.name, s.category, s.isthing and not s.iscrowd, s.area / self.id_map.size) for s in self.segments]
        return figure_html(self._picture(), repr(self), shares, self.metadata.palette)

    def _picture(self) -> Image.Image:
        try:
            return self.draw()
        except InputError:  # a notebook must not fail because a file has moved
            return replace(self, source=None).draw()


_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error)


def _array(archive: zipfile.ZipFile, name: str, limit: int) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    # a map may be a single segment, and is then a thousand times its size in the file
    name = f"{archive.filename}:{info.filename}"
    check_method(info)
    check_member(name, packed_size(archive, info), info.file_size, limit, "result", free=limit)
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def only_classes(result: PanopticResult, classes: Sequence[int]) -> PanopticResult:
    """A result with the segments of some classes (indices) alone; other pixels become void."""
    kept = [s for s in result.segments if s.category in set(classes)]
    present = np.zeros(max(int(result.id_map.max(initial=0)), *(s.id for s in result.segments), 0) + 1, bool)
    present[[s.id for s in kept]] = True
    present[0] = False
    return PanopticResult(np.where(present[result.id_map], result.id_map, 0), kept)


def _named(segment: Segment, metadata: Metadata) -> NamedSegment:
    values = {f.name: getattr(segment, f.name) for f in fields(Segment)}
    return NamedSegment(**values, name=metadata.categories[segment.category])


def _compact(p: Prediction) -> Prediction:
    """In as few bytes as possible; parts of a batch would hold on to the whole of it."""
    return Prediction(
        p.boxes.clone(),
        p.classes.clone(),
        p.scores.clone(),
        None if p.mask_logits is None else p.mask_logits.clone(),
        None if p.semantic is None else p.semantic.to(torch.uint8, copy=True),
        p.size,
    )
