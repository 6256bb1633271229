"""Simulate the peak memory of a training step on tensors without values: at any size, without a GPU, in seconds.

    python benchmarks/training_memory.py [--size 1920x2304] [--json FILE]

Sides are those of benchmarks/train_step.py, each with a fixed number of samples, since nothing can be read. Counted
are the bytes of what operators return, as long as it lives, in a second step above what stands before it: weights,
momenta, anchors and the batch. Workspaces of libraries and the rounding of an allocator are not counted, and sums of
gradients are new tensors, which autograd makes in place on a device: a run on a GPU differs. FLOPs are those of matrix
products and convolutions, with what is computed again.
"""

from __future__ import annotations

import argparse
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from street import VISTAS, noise, street
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from train_step import config_of, flops_of, side_of

from seamseg.config import Config
from seamseg.models.build import build_training_module
from seamseg.models.heads.rpn import AnchorGenerator
from seamseg.structures import Batch
from seamseg.training.step import StepResult
from seamseg.utils.distributed import World

SIDES = ("plain", "eager", "eager_checkpointed")


class LiveBytes(TorchDispatchMode):
    """Context that counts the bytes of what operators return, as long as it lives; `peak` is the largest number."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                self._seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return result

    def _count(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def simulate(
    config: Config, batch: Batch, classes: tuple[int, int], run_step: Callable[[Any], Any] | None = None
) -> tuple[StepResult, int, float]:
    """Return result, peak in bytes and FLOPs of a step; an operation that reads a value raises an error.

    `run_step` returns, for a network, what runs a step whole; None to run it in turn.
    """
    module = build_training_module(config, *classes).train()
    module.run_step = None if run_step is None else run_step(module.net)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, LiveBytes() as live:
        for layer in module.modules():
            for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
                if tensor is not None:
                    fake = mode.from_tensor(tensor.detach())
                    trained = isinstance(tensor, nn.Parameter)
                    setattr(layer, name, nn.Parameter(fake, tensor.requires_grad) if trained else fake)
        _fakes = [mode.from_tensor(tensor) for tensor in batch.tensors()]
        side = side_of("simulated", module, config, batch, World())
        flops = flops_of(side)
        live.peak = before = live.now
        result = side.step()
        # the anchors of this mode are of no use outside of it
        AnchorGenerator.__call__.cache_clear()
        return result, live.peak - before, flops


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1920x2304", help="HEIGHTxWIDTH of the image (default: %(default)s)")
    parser.add_argument("--config", default="vistas_r50", help="an experiment of configs/ (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    height, width = (int(n) for n in arguments.size.split("x"))
    batch = street(noise(height, width), VISTAS).with_target_info()
    rows: dict[str, dict[str, float]] = {}
    print(f"{'':<20}{'peak MiB':>10}{'ratio':>8}{'TFLOP':>8}")
    for name in SIDES:
        config = config_of(name, arguments.config, "roi.fixed_samples=yes")
        _, peak, flops = simulate(config, batch, (VISTAS.num_stuff, VISTAS.num_thing))
        row = rows[name] = {"peak_mib": peak / 2**20, "tflop": flops / 1e12}
        row["ratio"] = row["peak_mib"] / rows["plain"]["peak_mib"]
        print(f"{name:<20}{row['peak_mib']:>10.0f}{row['ratio']:>8.3f}{row['tflop']:>8.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"torch": torch.__version__, "size": [height, width], "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
