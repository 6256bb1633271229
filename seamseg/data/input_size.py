"""The size of the network's input for an image (docs/contract.md, section 4 "Test input"); no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from PIL import Image

MAX_MULTIPLE = 1024
"""Padding to larger multiples would add more than most images have."""

MAX_ASPECT = 4
"""Images longer than this times their shortest side are shrunk below `shortest_size`, see :func:`reference_size`."""


def scaled_size(size: tuple[int, int], shortest: int, longest: int | None) -> tuple[int, int]:
    """Return the size of the network input for an image of a size, `(height, width)` or the other way round.

    The shortest side becomes `shortest` pixels, unless the longest side would then exceed `longest`, which it becomes
    instead; both sides are truncated to whole pixels, `int(side * scale)`, and are at least 1.
    """
    scale = shortest / min(size)
    if longest is not None and int(max(size) * scale) > longest:
        scale = longest / max(size)
    return max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)


def resized(size: tuple[int, int], shortest: int) -> tuple[int, int]:
    """Return the size to which torchvision's `Resize(shortest)` scales an image, in the same order as `size`."""
    least = min(size)
    # int(side * (shortest / least)) would be a pixel less for some sizes
    first, second = (shortest if side == least else int(shortest * side / least) for side in size)
    return first, second


def resize_shortest(image: Image.Image, shortest: int) -> Image.Image:
    """Resize an image as torchvision's `Resize(shortest)` does."""
    return _resize(image, resized((image.height, image.width), shortest))


@dataclass(frozen=True)
class InputSize:
    """How large the network's input is, and how images become as large.

    Attributes
    ----------
    shortest_size : length of the shortest side in pixels; None keeps the size of the image
    longest_max_size : limit of the longest side; None for no limit, as in the original
    longest_size : length of the longest side in pixels, instead of the other two sizes; None to use those
    max_size : largest `(height, width)`, to which larger inputs are shrunk; None for no limit
    crop : `(height, width)` of the centre crop that a classifier takes; None for the whole image. Images are scaled and
        cut as by torchvision's `Resize` and `CenterCrop`, with a black border where they are smaller than the crop
    """

    shortest_size: int | None = None
    longest_max_size: int | None = None
    longest_size: int | None = None
    max_size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None

    def halved(self) -> InputSize:
        """Return half the size."""

        def half(size: int | None) -> int | None:
            return None if size is None else max(1, size // 2)

        return replace(
            self,
            shortest_size=half(self.shortest_size),
            longest_max_size=half(self.longest_max_size),
            longest_size=half(self.longest_size),
        )

    def within(self, max_size: tuple[int, int] | None) -> InputSize:
        """Return the sizes with another largest `(height, width)`."""
        return replace(self, max_size=max_size)

    def of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the `(height, width)` of the input for an image of `(height, width)`."""
        return self.scaled(size) if self.crop is None else self.crop

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the `(height, width)` to which an image of `(height, width)` is scaled, before the crop."""
        found = size
        if self.longest_size is not None:
            scale = self.longest_size / max(size)
            found = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
        elif self.shortest_size is not None and self.crop is not None:
            found = resized(size, self.shortest_size)
        elif self.shortest_size is not None:
            found = scaled_size(size, self.shortest_size, self.longest_max_size)
        if self.max_size is not None and (found[0] > self.max_size[0] or found[1] > self.max_size[1]):
            scale = min(self.max_size[0] / size[0], self.max_size[1] / size[1])
            found = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
        return found

    def scale(self, image: Image.Image) -> Image.Image:
        """Return an image at the size of the network input."""
        image = _resize(image, self.scaled((image.height, image.width)))
        return image if self.crop is None else _centre_crop(image, self.crop)


def reference_size(shortest: int, longest_max: int | None) -> InputSize:
    """Return the size of the input in prediction and validation, by `[dataloader] shortest_size, longest_max_size`.

    It has a scale of 1, whatever the size of a training image, a view or a smaller input is.
    """
    return InputSize(shortest, None if longest_max is None else max(MAX_ASPECT * shortest, longest_max))


def value_factor(change: str, enlarged: float, scale: float) -> float:
    """Return the factor from the values of a map, in the units of its files, to those in an input of the network.

    For `change` see :class:`seamseg.maps.folder.ReadMap`. `enlarged` is the width of the input as a fraction of the
    width of the image, `scale` as a fraction of the width in :func:`reference_size`.
    """
    return {"none": 1.0, "multiply": enlarged, "divide": 1 / scale}[change]


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)


def _centre_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    height, width = size
    top, left = _margin(image.height, height), _margin(image.width, width)
    return image.crop((left, top, left + width, top + height))


def _margin(have: int, want: int) -> int:
    # torchvision rounds half to even where it cuts, and down where it pads
    return round((have - want) / 2) if have >= want else -((want - have) // 2)
