"""The result of an image classifier: the probability of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seamseg.formats.metadata import Metadata
from seamseg.inference.fiftyone_labels import classification_label
from seamseg.inference.photo_result import Photo, PhotoResult, ResultFile, SourceImage
from seamseg.predictions import ArrayPrediction
from seamseg.visualize.overlay import short_name

if TYPE_CHECKING:
    import fiftyone

TOP = 5
"""Classes that are shown and saved."""

_MAX_CLASSES = 1_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Classification(PhotoResult):
    """The probability of each class of an image.

    Attributes
    ----------
    probabilities : `classes` float32, which sum to 1
    photo_size : `(height, width)` of the image
    metadata, prediction, source : see :class:`seamseg.inference.photo_result.PhotoResult`

    Examples
    --------
    >>> seamseg.load("resnext101.onnx").predict("cat.jpg").top(2)  # doctest: +SKIP
    [('tabby', 0.71), ('tiger cat', 0.2)]
    """

    counted = "classes"
    probabilities: np.ndarray
    photo_size: tuple[int, int]
    metadata: Metadata = field(default_factory=lambda: Metadata(0, 0, [], [], []))
    prediction: ArrayPrediction | None = None
    source: SourceImage = None

    @staticmethod
    def of(
        prediction: ArrayPrediction, size: tuple[int, int], metadata: Metadata, classes: Sequence[int] | None = None
    ) -> Classification:
        """Return the result of an image of `(height, width)` from the logits of the network.

        Parameters
        ----------
        prediction : prediction with logits
        size : `(height, width)` of the image
        metadata : the classes of the model
        classes : indices of the classes to choose among, others have probability 0; None for all
        """
        assert prediction.logits is not None
        logits = prediction.logits.astype(np.float64)
        if classes is not None:
            logits = np.where(np.isin(np.arange(len(logits)), list(classes)), logits, -np.inf)
        shares = np.exp(logits - logits.max())
        return Classification((shares / shares.sum()).astype(np.float32), size, metadata.without_images())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Classification):
            return NotImplemented
        return self.size == other.size and np.array_equal(self.probabilities, other.probabilities)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        height, width = self.size
        return f"Classification({width} x {height}: {', '.join(f'{n} {p:.0%}' for n, p in self.top())})"

    def top(self, count: int = TOP) -> list[tuple[str, float]]:
        """Return name and probability of the most probable classes, best first."""
        return [(name, share) for name, _, _, share in self._best(count)]

    def counts(self) -> dict[str, int]:
        """Return 1 for the most probable class."""
        return {self.top(1)[0][0]: 1}

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """Return name, index, False, and probability of the most probable classes, best first."""
        return self._best(TOP)

    def _best(self, count: int) -> list[tuple[str, int, bool, float]]:
        best = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.metadata.categories[k], int(k), False, float(self.probabilities[k])) for k in best]

    def draw(self, photo: Photo = None, **options: Any) -> Image.Image:
        """Write the most probable classes onto an image; None for the result's own, or a black image if it has none."""
        rgb, _ = self.canvas(photo, 1.0)
        image = Image.fromarray(np.array(rgb))
        font = ImageFont.load_default(size=max(10, min(image.size) // 24))
        text = "\n".join(f"{share:4.0%} {short_name(name)}" for name, share in self.top())
        ImageDraw.Draw(image).multiline_text((4, 4), text, "white", font, stroke_width=2, stroke_fill="black")
        return image

    def to_coco(self, image_id: int | str = 0) -> list[dict[str, Any]]:
        """Return the most probable classes as entries with `image_id`, `category_id` and `score`."""
        return [{"image_id": image_id, "category_id": k, "score": share} for _, k, _, share in self.shares()]

    def _fiftyone_labels(self) -> dict[str, fiftyone.Label]:
        return {"classification": classification_label(*self.top(1)[0])}

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"size": self.size}, {"probabilities": self.probabilities}

    @classmethod
    def _read(cls, file: ResultFile, source: SourceImage) -> Classification:
        probabilities = file.array("probabilities", 4 * _MAX_CLASSES + 1024)
        names = [str(name) for name in file.content["classes"]["categories"]]
        metadata = Metadata(0, len(names), names, [], [])
        if probabilities.shape != (metadata.num_classes,) or probabilities.dtype != np.float32:
            raise ValueError(f"its probabilities are {probabilities.shape} {probabilities.dtype}")
        return Classification(probabilities, file.size, metadata, None, source)
