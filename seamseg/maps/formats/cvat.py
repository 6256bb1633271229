"""The layout "Segmentation mask 1.1" of CVAT, that of Pascal VOC: a colour for each label, and one for each object.

`labelmap.txt` has a line `label:r,g,b::` for each label, the first being the background: void and a class of this name.
`SegmentationClass/<name>.png` holds the colour of the label of each pixel. `SegmentationObject/<name>.png` holds
colours of the palette of Pascal VOC, whose index is the number of the object in the image, from 1; 0 is no object.
`ImageSets/Segmentation/<list>.txt` lists the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import SegmentLike
from seamseg.maps.visualize.overlay import voc_color
from seamseg.utils.errors import InputError

CLASS_FOLDER, OBJECT_FOLDER = "SegmentationClass", "SegmentationObject"
LABELMAP = "labelmap.txt"
LISTS = "ImageSets/Segmentation"
BACKGROUND = "background"
MAX_OBJECTS = 255
"""Objects in an image: CVAT reads the first 256 colours of the palette."""

Color = tuple[int, int, int]
_BLACK: Color = (0, 0, 0)


def label_colors(metadata: Metadata) -> list[Color]:
    """Return the colours of the classes for `labelmap.txt`: of the palette, if they are distinct and not black.

    A stuff class `background` is black, the label that each `labelmap.txt` has. A name that cannot be written is an
    InputError.
    """
    has_rest = BACKGROUND in metadata.categories[: metadata.num_stuff]
    names = [name for name in metadata.categories if not (has_rest and name == BACKGROUND)]
    for name in names:
        if name.strip().lower() == BACKGROUND or not name.strip() or any(c in name for c in ":#\n\r"):
            raise InputError(f"the class {name!r} cannot be a label in {LABELMAP} of CVAT; use the format coco")
    taken: set[Color] = {_BLACK}
    wanted = [(int(red), int(green), int(blue)) for red, green, blue in metadata.palette]
    found = []
    for name, color in zip(metadata.categories, wanted):
        if name == BACKGROUND:
            found.append(_BLACK)
            continue
        spare = (voc_color(k) for k in range(1, 1 << 24))
        chosen = color if color not in taken else next(c for c in spare if c not in taken and c not in wanted)
        taken.add(chosen)
        found.append(chosen)
    return found


def labelmap_text(metadata: Metadata, colors: Sequence[Color]) -> str:
    """Return the content of `labelmap.txt`."""
    lines = ["# label:color_rgb:parts:actions", f"{BACKGROUND}:0,0,0::"]
    labels = zip(metadata.categories, colors)
    lines += [f"{name}:{','.join(map(str, color))}::" for name, color in labels if name != BACKGROUND]
    return "\n".join(lines) + "\n"


def parse_labelmap(text: str, source: str) -> dict[str, Color]:
    """Return the colour of each label of a `labelmap.txt`, in its order; InputError names `source` and the line."""
    found: dict[str, Color] = {}
    colors: set[Color] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        channels = [word.strip() for word in rest.partition(":")[0].split(",")]
        if len(channels) != 3 or not all(re.fullmatch("[0-9]{1,3}", word) and int(word) < 256 for word in channels):
            raise InputError(f"{source}: line {number}: expected label:red,green,blue::, not {line.strip()!r}")
        color = (int(channels[0]), int(channels[1]), int(channels[2]))
        if name in found or color in colors:
            raise InputError(f"{source}: line {number}: the label {name!r} or its colour occurs twice")
        found[name] = color
        colors.add(color)
    if not found:
        raise InputError(f"{source}: no labels")
    return found


def code_of(color: Sequence[int]) -> int:
    """Return a colour as the id of an RGB image, R + 256 G + 65536 B."""
    return int(color[0]) | int(color[1]) << 8 | int(color[2]) << 16


def encode_masks(
    ids: np.ndarray, segments: Sequence[SegmentLike], colors: Sequence[Color], image: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the colours of both images of a map of segment ids, `H x W` uint32; other ids are void.

    Stuff is an object, too: CVAT keeps no pixel without one. Crowds have a label but no object. Too many objects are an
    InputError that names the image.
    """
    single = [s.id for s in segments if not s.iscrowd and colors[s.category] != _BLACK]
    if len(single) > MAX_OBJECTS:
        raise InputError(
            f"image {image}: {len(single)} segments, more than the {MAX_OBJECTS} objects that CVAT reads; use the "
            "format coco"
        )
    labels = look_up(ids, [(s.id, code_of(colors[s.category])) for s in segments], np.uint32)
    return labels, look_up(ids, [(i, code_of(voc_color(k))) for k, i in enumerate(single, 1)], np.uint32)
