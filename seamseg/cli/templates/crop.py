"""A crop of training images that contains a rare class, where the image has one."""

from dataclasses import dataclass

import numpy as np

from seamseg.components import Crop, CropParams, crop, key


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [crop example]."""

    category: int = key("index of the class in the table of classes", 1, minimum=0)


@crop("example", keys=ExampleKeys)
class Example(Crop):
    """Crops of `[dataloader] crop_size` around a random pixel of a class."""

    def draw(self, image, rng):
        """Draw flip, scale and window; take random numbers from rng only."""
        flip = self.context.draw_flip(rng)
        height, width = size = self.context.draw_size(image.size, rng)
        wanted = [i for i, category in enumerate(image.cat) if category == self.keys.category]
        pixels = np.argwhere(np.isin(image.ids, wanted).any(0))  # of the image before scaling
        if not len(pixels):
            return CropParams(size, self.context.draw_window(size, rng), flip)
        row, column = pixels[rng.randrange(len(pixels))]
        h, w = self.context.window_size(size)
        # the pixel in the middle, but for the borders of the image
        y = min(max(int(row * height / image.size[0]) - h // 2, 0), height - h)
        x = min(max(int(column * width / image.size[1]) - w // 2, 0), width - w)
        return CropParams(size, (y, x, h, w), flip)
