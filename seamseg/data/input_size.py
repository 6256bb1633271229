"""The size of the network's input for an image (docs/contract.md, section 4 "Test input"); no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

MAX_MULTIPLE = 1024
"""Padding to larger multiples would add more than most images have."""

MAX_ASPECT = 4
"""Images longer than this times their shortest side are shrunk below `shortest_size`, see :func:`reference_size`."""


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
        names = ("shortest_size", "longest_max_size", "longest_size")
        sizes = {name: getattr(self, name) for name in names}
        return replace(self, **{name: max(1, size // 2) for name, size in sizes.items() if size is not None})

    def of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the `(height, width)` of the input for an image of `(height, width)`."""
        return self.scaled(size) if self.crop is None else self.crop

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the `(height, width)` to which an image of `(height, width)` is scaled, before the crop.

        The shortest side becomes `shortest_size`, unless the longest one would then exceed `longest_max_size`, which it
        becomes instead; both sides are truncated to whole pixels, `int(side * scale)`, and are at least 1.
        """
        scale = 1.0
        if self.longest_size is not None:
            scale = self.longest_size / max(size)
        elif self.shortest_size is not None and self.crop is not None:
            least, shortest = min(size), self.shortest_size
            # as torchvision's Resize: int(side * (shortest / least)) would be a pixel less for some sizes
            height, width = (shortest if side == least else int(shortest * side / least) for side in size)
            return height, width
        elif self.shortest_size is not None:
            scale = self.shortest_size / min(size)
            if self.longest_max_size is not None and int(max(size) * scale) > self.longest_max_size:
                scale = self.longest_max_size / max(size)
        found = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
        if self.max_size is not None and (found[0] > self.max_size[0] or found[1] > self.max_size[1]):
            scale = min(self.max_size[0] / size[0], self.max_size[1] / size[1])
            found = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
        return found


def reference_size(shortest: int, longest_max: int | None) -> InputSize:
    """Return the size of the input in prediction and validation, by `[dataloader] shortest_size, longest_max_size`.

    It has a scale of 1, whatever the size of a training image, a view or a smaller input is.
    """
    return InputSize(shortest, None if longest_max is None else max(MAX_ASPECT * shortest, longest_max))


def value_factor(change: str, enlarged: float, scale: float) -> float:
    """Return the factor of values of a map (:class:`ReadMap`) for an input `enlarged` by, and of a `scale`."""
    return {"none": 1.0, "multiply": enlarged, "divide": 1 / scale}[change]
