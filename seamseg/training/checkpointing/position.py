"""Where inside an epoch a training stands, as a snapshot keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from seamseg.data.samplers import ARBatchSampler, EpochSegment


def order_of(sampler: ARBatchSampler, seed: int) -> tuple[int, int]:
    """What the order of the images depends on besides the epoch: their number, the seed of the run.

    A position counts only in an epoch of the same order.
    """
    return len(sampler.img_sizes), seed


@dataclass(frozen=True)
class EpochPosition:
    """A place between two steps of an epoch.

    Attributes
    ----------
    epoch : number of the epoch, from 0
    steps : steps of it that are done
    segments : the batches that made them, and how they were shared
    order : see :func:`order_of`
    """

    epoch: int
    steps: int
    segments: tuple[EpochSegment, ...]
    order: tuple[int, ...]

    def after(self, batches: int) -> EpochPosition:
        """One step of so many batches a process further on."""
        last = self.segments[-1]
        return replace(
            self, steps=self.steps + 1, segments=(*self.segments[:-1], last._replace(done=last.done + batches))
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "epoch": self.epoch,
            "steps": self.steps,
            "segments": [list(segment) for segment in self.segments],
            "order": list(self.order),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EpochPosition:
        """The position that :meth:`state_dict` wrote; KeyError, TypeError or ValueError if it did not."""
        segments = tuple(EpochSegment(*map(int, segment)) for segment in state["segments"])
        if not segments or any(s.world < 1 or s.batch_size < 1 or s.done < 0 for s in segments):
            raise ValueError("impossible segments")
        return cls(int(state["epoch"]), int(state["steps"]), segments, tuple(map(int, state["order"])))
