"""Formats of detection and instance segmentation: overlays, COCO results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.config.components import register
from seamseg.inference.options import Thresholds
from seamseg.inference.results.detections import Detections
from seamseg.predicting.source import Source
from seamseg.predicting.writers.base import OutputFormat, Record, Records
from seamseg.predicting.writers.images import ImageFormat
from seamseg.predictions import ArrayPrediction
from seamseg.utils.files import replacing
from seamseg.visualize.detections import draw_legacy

RESULTS_JSON = "coco_results.json"


@register("format", "overlay-legacy")
class LegacyOverlayWriter(ImageFormat[Detections]):
    """The image as the original's `test_instance_seg.py` draws it: masks at 75 % opacity and boxes, without text."""

    kinds = ("instance_seg", "detection")

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Detections) -> Image.Image:
        """See :class:`seamseg.predicting.writers.images.ImageFormat`."""
        assert rgb is not None
        return Image.fromarray(draw_legacy(rgb, list(result), result.size, self.metadata.palette))


@register("format", "coco-results")
class CocoResultsWriter(OutputFormat[Detections]):
    """All detections in COCO's format of results: `coco_results.json`, a list that `COCO.loadRes` reads.

    `image_id` is the name of the image without its ending, with its sub-folder, as in `coco/<split>.json` of a dataset
    folder; see :meth:`seamseg.inference.results.detections.Detections.to_coco` for the rest.
    """

    kinds = ("instance_seg", "detection")

    def paths(self, source: Source) -> list[Path]:
        """Return no files: all detections are in one file."""
        return []

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Detections) -> Record:
        """Return the entries of an image."""
        thresholds = Thresholds(self.choice.least_score)
        chosen = Detections.of(prediction, result.size, self.metadata, thresholds, self.choice.classes)
        return {"results": chosen.to_coco(source.name)}

    def finals(self) -> list[Path]:
        """Return `coco_results.json`."""
        return [self.out / RESULTS_JSON]

    def finish(self, records: Records) -> None:
        """Write `coco_results.json`, an entry a line, in constant memory; `[]` if nothing was found."""
        with replacing(self.out / RESULTS_JSON) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write("[")
            between = "\n"
            for record in records():
                for entry in record["results"]:
                    file.write(between + json.dumps(entry, allow_nan=False))
                    between = ",\n"
            file.write("]\n" if between == "\n" else "\n]\n")
