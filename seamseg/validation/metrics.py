"""Metrics of a validation over the images of all processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from seamseg.config import Config
from seamseg.maps.evaluation.metric import Metric, Selection
from seamseg.maps.evaluation.scores import Scores
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import ArrayPrediction
from seamseg.utils.distributed import World, gather_objects, sum_over_processes
from seamseg.utils.errors import SeamsegError, instance_of, named_errors

if TYPE_CHECKING:
    from seamseg.validation.items import Scorer, ValidationItem


def scores_of_all(world: World, scorer: Scorer | Metric, errors: Callable[[], Any] = nullcontext) -> Any:
    """Return the scores of a scorer or metric over the images of all processes; a collective call.

    Arrays are summed, and each process computes the scores; lists are joined in the main process, which computes them.
    `errors` makes a context that names the scorer in errors of its code.
    """
    with errors():
        state: Any = scorer.state()
        array = np.asarray(state) if not scorer.gathered else None
        if array is None and not isinstance(state, list):
            raise TypeError(f"state() must return a list, returned {type(state).__name__}")
        if array is not None and array.dtype.kind not in "biuf":
            raise TypeError(f"state() must return a vector of numbers, returned {type(state).__name__}")
    if array is None:
        parts = gather_objects(world, state)
        with errors():
            scores = scorer.scores([x for part in parts for x in part]) if world.is_main else None
        return gather_objects(world, scores)[0]
    # a process without images has zeros, which may be integers beside the fractions of another one
    shapes, integers = zip(*gather_objects(world, (array.shape, array.dtype.kind != "f")))
    with errors():
        if len(set(shapes)) > 1:
            raise ValueError(f"state() returned vectors of different shapes in the processes: {set(shapes)}")
    summed = sum_over_processes(world, torch.from_numpy(array.astype(np.int64 if all(integers) else np.float64)))
    with errors():
        return scorer.scores(summed.numpy())


class CustomMetrics:
    """The custom metrics of a configuration."""

    def __init__(self, config: Config, metadata: Metadata, world: World) -> None:
        self._world, self._options = world, config.general
        self._metrics: dict[str, Metric] = {}
        for component, keys in config.components("metric"):
            with self._errors(component.name, component.module):
                metric = instance_of(Metric, component.make(keys), f"{component.section} ({component.file})")
                if not isinstance(metric.higher_is_better, bool):
                    raise TypeError(f"higher_is_better must be True or False, is {metric.higher_is_better!r}")
                metric.begin(metadata.num_stuff, metadata.num_thing)
            self._metrics[component.name] = metric

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> None:
        """Add an image of this process."""
        for name, metric in self._metrics.items():
            with self._errors(name, type(metric).__module__):
                # a copy for each: one may change it
                metric.add(*(deepcopy((item, prediction)) if len(self._metrics) > 1 else (item, prediction)))

    def added_to(self, scores: Scores) -> Scores:
        """Add the scores of the metrics over the images of all processes; a collective call.

        SeamsegError if a metric fails, or two have a score of one name.
        """
        found: dict[str, float] = {}
        selected = None
        others = scores.to_json() if self._metrics else {}
        for name, metric in self._metrics.items():
            errors = partial(self._errors, name, type(metric).__module__)
            given = scores_of_all(self._world, metric, errors)
            with errors():
                own = {score: float(value) for score, value in given.items()}
                if not own:
                    raise ValueError("scores() returned no numbers")
            taken = [score for score in own if score in found or score in others]
            if taken:
                raise SeamsegError(f"metric {name}: there is another score {taken[0]}: rename it")
            found |= own
            if name == self._options.eval_mode:
                selected = Selection(*next(iter(own.items())), metric.higher_is_better, percent=False)
        if not found:
            return scores
        return replace(scores, metrics=found, selected=selected)

    def _errors(self, name: str, module: str) -> AbstractContextManager[None]:
        return named_errors(f"metric {name}", module)
