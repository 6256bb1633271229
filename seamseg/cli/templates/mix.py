"""A mosaic of training images: another image in each quarter."""

from dataclasses import dataclass

from seamseg.components import Mix, key, mix


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [mix example]."""

    probability: float = key("probability of a mosaic", 0.5, minimum=0, maximum=1)


@mix("example", keys=ExampleKeys)
class Example(Mix):
    """Lays three other images over the right and lower quarters of one."""

    def combine(self, image, rng, load):
        """Return the image with its targets, combined with others; take random numbers from rng only."""
        if rng.random() >= self.keys.probability:
            return image
        height, width = image.ids.shape[1:]
        for y, x in ((0, width // 2), (height // 2, 0), (height // 2, width // 2)):
            other = load()  # augmented as any other image; None if there is none
            if other is not None:
                # all of its segments, and 0, its void pixels; what lies outside is cut off
                image = image.paste(other, range(len(other.cat)), y, x)
        return image
