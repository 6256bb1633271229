"""What the results of all kinds of networks have in common: the image, overlays, files, notebooks."""

from __future__ import annotations

import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
from PIL import Image

from seamseg.data.images import MAX_PIXELS, open_image, pixels_of
from seamseg.formats.metadata import Metadata, metadata_of
from seamseg.inference.anonymize import LEAST_SCORE, Style, hide_classes
from seamseg.inference.class_names import choose_classes
from seamseg.panoptic_map import PanopticResult
from seamseg.predictions import RESERVED_NAMES, ArrayPrediction, name_problem
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing, write_atomically, write_json
from seamseg.utils.limits import (
    MODEL_METADATA_BYTES,
    check_member,
    check_method,
    check_sides,
    open_file,
    packed_size,
    parse_json,
    whole_number,
)
from seamseg.visualize.overlay import encode_thumbnail, figure_html

if TYPE_CHECKING:
    import fiftyone

OVERLAY_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""File endings for which :meth:`PhotoResult.save` writes the overlay."""

SourceImage: TypeAlias = Path | Image.Image | None

Photo: TypeAlias = np.ndarray | Image.Image | None

R = TypeVar("R", bound="PhotoResult")

COUNTED = ("segments", "detections", "classes")
"""What :meth:`PhotoResult.counts` counts, for the kinds of results."""


class PhotoResult(ABC):
    """The result of a prediction on an image, whatever the kind of network; results are frozen dataclasses.

    Attributes
    ----------
    metadata : names, colours and ids of the classes
    prediction : output of the network, in pixels of its input; None in a loaded result
    source : path or copy of the image, if it is kept
    maps : output maps of custom heads by name, `H x W` or `channels x H x W`, at the size of the network's input; see
        :func:`seamseg.components.resize_map`
    counted : what :meth:`counts` counts, one of :data:`COUNTED`
    """

    counted: ClassVar[str]
    photo_size: tuple[int, int]
    metadata: Metadata
    prediction: ArrayPrediction | None
    source: SourceImage
    maps: Mapping[str, np.ndarray] = MappingProxyType({})

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image; results without a map have it as `photo_size`."""
        return self.photo_size

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Count what was found of each class, by name, in the order of the classes."""

    @abstractmethod
    def draw(self, photo: Photo = None, **options: Any) -> Image.Image:
        """Draw the result over an image."""

    def with_photo(self: R, photo: SourceImage, prediction: ArrayPrediction | None = None) -> R:
        """Return the result with its image, and with a copy of the output of the network."""
        compact = None if prediction is None else prediction.copy()
        has_maps = compact is not None and any(field.name == "maps" for field in fields(cast(Any, self)))
        given = compact.maps if compact is not None and has_maps else {}
        own = {name: values for name, values in given.items() if name not in RESERVED_NAMES}
        more = {"maps": own} if given else {}
        return cast(R, replace(cast(Any, self), source=photo, prediction=compact, **more))

    @property
    def photo(self) -> np.ndarray | None:
        """The image, uint8 `H x W x 3` RGB, upright; None if the result has none.

        Raises
        ------
        InputError
            if the image is a file that no longer exists, or has another size now
        """
        if self.source is None:
            return None
        rgb = pixels_of(open_image(self.source) if isinstance(self.source, Path) else self.source)
        if rgb.shape[:2] != self.size:
            height, width = self.size
            raise InputError(
                f"{self.source}: the image is now {rgb.shape[1]} x {rgb.shape[0]} pixels, the result is of "
                f"{width} x {height}: the file has changed"
            )
        return rgb

    def pixels_to_draw_on(self, photo: Photo) -> np.ndarray | None:
        """Return an image, or the result's own for None, as uint8 `H x W x 3`; None if there is none.

        Raises
        ------
        InputError
            if it is not an RGB image, or see :attr:`photo`
        """
        given = photo.convert("RGB") if isinstance(photo, Image.Image) else photo
        rgb = self.photo if given is None else np.asarray(given)
        if rgb is not None and (rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3):
            raise InputError(f"an image to draw on must be H x W x 3 uint8 RGB, this one is {rgb.shape} {rgb.dtype}")
        return rgb

    def canvas(self, photo: Photo, opacity: float) -> tuple[np.ndarray, float]:
        """Return what an overlay is drawn on, and its opacity: without any image a black image, fully covered.

        Raises
        ------
        InputError
            if the opacity is not between 0 and 1, or see :meth:`pixels_to_draw_on`
        """
        if not 0 <= opacity <= 1:
            raise InputError(f"opacity must be between 0 and 1, not {opacity}")
        rgb = self.pixels_to_draw_on(photo)
        return (np.zeros((*self.size, 3), np.uint8), 1.0) if rgb is None else (rgb, opacity)

    def anonymize(
        self, classes: str | Sequence[str], style: Style = "blur", least_score: float = LEAST_SCORE
    ) -> Image.Image:
        """Return the image with everything that may belong to some classes made unrecognisable.

        Parameters
        ----------
        classes : names; include related classes, as `person,rider`
        style : "blur" or "pixels"
        least_score : minimum score of detections that are hidden, see
            :func:`seamseg.inference.anonymize.private_regions`

        Raises
        ------
        InputError
            if a name is unknown, or the result has no image

        Examples
        --------
        >>> result.anonymize("person,rider,car").save("street_private.jpg")  # doctest: +SKIP
        """
        chosen = choose_classes(classes, self.metadata)
        rgb = self.photo
        if rgb is None:
            raise InputError("this result has no image to anonymise: predict with keep_photo=True")
        return Image.fromarray(
            hide_classes(rgb, self._segments(), self.prediction, chosen, self.metadata.num_stuff, style, least_score)
        )

    def _segments(self) -> PanopticResult | None:
        """Return the panoptic map of the result, if it has one."""
        return None

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result atomically, in the format that the ending of the path selects.

        Parameters
        ----------
        path : `.jpg`, `.png` or `.webp` for the overlay; `.json` for the COCO format of this kind of result; `.npz` to
            load it again
        **options : options of :meth:`draw`, for overlays

        Returns
        -------
        path : the path as given

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
            check_sides(image.size, OVERLAY_FORMATS[ending])
            more = {"quality": 92} if ending != ".png" else {}
            with replacing(path) as temporary:
                image.save(temporary, OVERLAY_FORMATS[ending], **more)
        elif ending not in (".json", ".npz"):
            raise InputError(f"{path}: results are saved as {', '.join([*OVERLAY_FORMATS, '.json', '.npz'])}")
        elif options:
            raise InputError(f"{path}: {', '.join(options)}: options for overlays only")
        elif ending == ".json":
            self._save_json(path)
        else:
            facts, arrays = self._content()
            stated = {"maps": list(self.maps)} if self.maps else {}
            content = {"version": 1, **facts, **stated, "classes": asdict(self.metadata)}
            buffer = BytesIO()
            np.savez_compressed(buffer, facts=np.array(json.dumps(content)), **cast(Any, {**arrays, **self.maps}))
            write_atomically(path, buffer.getvalue())
        return path

    @classmethod
    def load(cls: type[R], path: str | Path, photo: str | Path | None = None) -> R:
        """Load a `.npz` file from :meth:`save`; nothing in the file is executed.

        Parameters
        ----------
        path : path of the file
        photo : path of its image, to draw on

        Raises
        ------
        InputError
            if the file is missing, broken or of another kind
        """
        try:
            with open_file(path) as opened, zipfile.ZipFile(opened) as archive:
                file = ResultFile(archive)
                result = cls._read(file, None if photo is None else Path(photo))
                maps = file.maps()
                return cast(R, replace(cast(Any, result), maps=maps) if maps else result)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except _BROKEN as error:
            raise InputError(f"{path}: not a result saved as .npz: {error}") from None

    @classmethod
    @abstractmethod
    def _read(cls, file: ResultFile, source: SourceImage) -> PhotoResult:
        """Return the result in a file; errors in :data:`_BROKEN` if it is broken or of another kind."""

    @abstractmethod
    def to_coco(self, image_id: int | str = 0) -> Any:
        """Return the result in the COCO format of its kind."""

    def to_fiftyone(self) -> dict[str, fiftyone.Label]:
        """Return labels of FiftyOne by name.

        `segmentation`, of networks with a class map: class index + 1, 0 void, crowds included. `detections`: the things
        of a panoptic map, or the detections, with masks if the network has them; the box of an object with a mask is
        that of its pixels, over which FiftyOne stretches the mask. `classification`: the most probable class.

        Raises
        ------
        InputError
            if the library is not installed

        Examples
        --------
        >>> for name, label in result.to_fiftyone().items():  # doctest: +SKIP
        ...     sample[name] = label
        """
        return self._fiftyone_labels()

    @abstractmethod
    def _fiftyone_labels(self) -> dict[str, fiftyone.Label]: ...

    def _save_json(self, path: Path) -> None:
        """Write the COCO format."""
        write_json(path, self.to_coco(path.stem))

    @abstractmethod
    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a `.npz` file holds besides the classes: plain data, and arrays by name."""

    @abstractmethod
    def shares(self) -> list[tuple[str, int, bool, float]]:
        """Return for each found object or region: class name, index, whether it is counted, part of the image."""

    def _repr_png_(self) -> bytes:
        return encode_thumbnail(self._overlay())

    def _repr_html_(self) -> str:
        return figure_html(self._overlay(), repr(self), self.shares(), self.metadata.palette)

    def _overlay(self) -> Image.Image:
        try:
            return self.draw()
        except InputError:  # the file of the image may have moved
            return cast(PhotoResult, replace(cast(Any, self), source=None)).draw()


class ResultFile:
    """A `.npz` file from :meth:`PhotoResult.save`, opened; nothing in the file is executed."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.content: Mapping[str, Any] = parse_json(str(self.array("facts", MODEL_METADATA_BYTES)))

    @property
    def metadata(self) -> Metadata:
        """The classes."""
        return metadata_of(self.content["classes"], f"{self._archive.filename}: classes")

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image; for results without a map."""
        height, width = map(whole_number, self.content["size"])
        if min(height, width) < 1 or height * width > MAX_PIXELS:
            raise ValueError(f"its image has {width} x {height} pixels")
        return height, width

    def maps(self) -> dict[str, np.ndarray]:
        """Read the maps of custom heads."""
        found = {}
        for name in self.content.get("maps", ()):
            if problem := name_problem(name):
                raise ValueError(f"map {problem}")
            found[name] = self.array(name, 4 * MAX_PIXELS + 1024)
            if found[name].dtype.kind not in "fiub" or found[name].ndim not in (2, 3):
                raise ValueError(f"its map {name} is {found[name].shape} {found[name].dtype}")
        return found

    def array(self, name: str, limit: int) -> np.ndarray:
        """Read an array of at most `limit` bytes."""
        info = self._archive.getinfo(f"{name}.npy")
        # a map of a single segment is a thousand times its size in the file
        name = f"{self._archive.filename}:{info.filename}"
        check_method(info)
        check_member(name, packed_size(self._archive, info), info.file_size, limit, "result", free=limit)
        with self._archive.open(info) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    MemoryError,
)


def import_supervision() -> Any:
    """Import the library `supervision`; InputError if it is not installed."""
    try:
        import supervision
    except ImportError as error:
        advice = "pip install 'seamseg[supervision]'"
        raise InputError(f"to_supervision() needs supervision ({error}): {advice}") from error
    return supervision
