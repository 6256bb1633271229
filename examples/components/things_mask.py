"""An output format: `predict --format things_mask` writes `NAME_things_mask.png` for each image."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from seamseg.components import ImageFormat, key, output_format


@dataclass(frozen=True)
class ThingsMaskKeys:
    """Keys of the section [format things_mask]."""

    value: int = key("grey value of things", 255, minimum=1, maximum=255)


@output_format("things_mask", keys=ThingsMaskKeys)
class ThingsMask(ImageFormat):
    """A mask of all things."""

    kinds = ("panoptic",)
    needs_photo = False
    ending = "_things_mask.png"  # and in folders

    def image(self, rgb, prediction, result):
        """Return the image of a result, at the size of the image."""
        mask = np.zeros(result.id_map.shape, np.uint8)
        for segment in result.segments:
            if segment.isthing:
                mask[result.mask(segment)] = self.keys.value
        return Image.fromarray(mask)
