"""Custom metrics, over the images of all processes, beside the scores of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from seamseg.maps.predictions import ArrayPrediction

if TYPE_CHECKING:
    from seamseg.maps.folder import ReadMap


class Metric:
    """A metric; derive from it, and register the class with :data:`seamseg.components.metric`.

    Parameters
    ----------
    keys : values of the section `[metric NAME]`

    Attributes
    ----------
    higher_is_better : whether a higher value of the first of its :meth:`scores` is better; that score can select the
        best snapshot (`[general] eval_mode`); NaN never does
    gathered : whether :meth:`state` is a list of entries of images, which is collected instead of summed
    reads : the ground truth that is read from the data set, by name, as of :class:`seamseg.components.Head`
    """

    higher_is_better: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, ReadMap]] = {}
    gathered: ClassVar[bool] = False

    def __init__(self, keys: Any = None) -> None:
        self.keys = keys

    def begin(self, num_stuff: int, num_thing: int) -> None:
        """Begin an evaluation with so many classes, stuff first; set all counts to zero."""

    def add(self, item: Any, prediction: ArrayPrediction) -> None:
        """Add an image.

        Parameters
        ----------
        item : :class:`seamseg.validation.validator.ValidationItem`: `mask`, a tensor of ids `L x h x w` at native size,
            their classes `cat` and crowd flags `iscrowd`, `id`, `native_size` `(h, w)`, `pixels`, the network's input,
            `H x W x 3` uint8, `maps`, read for :attr:`reads` by name, `channels x h x w` float32, and `result`, what is
            scored, after all thresholds, at native size and in the classes of the data set: a
            :class:`seamseg.results.panoptic.Panoptic`, `Detections` or `SemanticMap`, as `predict` returns it
        prediction : numpy arrays at the size of the network's input, before thresholds: boxes, classes, scores,
            semantic, maps; floats are float32 whatever the precision of the network, maps of integers keep their type
        """
        raise NotImplementedError

    def state(self) -> np.ndarray | list[Any]:
        """Return the counts as one vector, which is summed over the processes: integers as int64, others as float64.

        With :attr:`gathered`, return a list of picklable entries, such as one of each image.
        """
        raise NotImplementedError

    def scores(self, state: Any) -> dict[str, float]:
        """Return numbers by name, fractions or others; NaN if undefined.

        Parameters
        ----------
        state : the summed counts; with :attr:`gathered` the entries of all processes, in any order, and the method is
            called in the main process only
        """
        raise NotImplementedError


class Selection(NamedTuple):
    """The score that selects the best snapshot.

    Attributes
    ----------
    name, value : its name; NaN if it is undefined
    higher_is_better : whether a higher value is better
    percent : whether it is a fraction that logs show in percent; others are shown as they are, with the name
    """

    name: str
    value: float
    higher_is_better: bool = True
    percent: bool = True

    def __str__(self) -> str:
        return f"{100 * self.value:.2f}" if self.percent else f"{self.name} {self.value:.4g}"

    def beats(self, best: float) -> bool:
        """Return whether the value is better than the best of other validations; NaN never is."""
        return self.value > best if self.higher_is_better else self.value < best
