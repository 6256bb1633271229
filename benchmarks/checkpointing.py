"""Measure the memory and time of `checkpoint_body`: a training step of cityscapes_r50, forward and backward, in fp32.

    python benchmarks/checkpointing.py [--size 512x1024] [--rounds 3] [--device cuda] [--json FILE]

`stages` and `blocks` checkpoint the body alone, by stage or by residual block; `body + pyramid` is what the key does,
by stage. Kept are the tensors that the forward pass leaves for the backward pass, each storage once, without the
parameters; the peak is the allocator's (benchmarks/memory.py). The sides take turns, times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import train_step
from memory import peak_bytes
from street import VISTAS, noise, street
from timing import processor
from torch import Tensor, nn

from seamseg.config import load_config
from seamseg.models.build import build_training_module
from seamseg.models.criterion import TrainingModule
from seamseg.models.panoptic import PanopticNet
from seamseg.ops.abn_recompute import checkpointed
from seamseg.structures import Batch


class Again(nn.Module):
    """A module of which only the output is kept, where anything is trained."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Call the module with checkpointing."""
        return checkpointed(self.part, x) if x.requires_grad else self.part(x)


def blocks(net: PanopticNet) -> None:
    """Checkpoint the body by residual block."""
    for stage in (net.body.backbone.get_submodule(f"mod{i}") for i in range(2, 6)):
        for name, block in list(stage.named_children()):
            setattr(stage, name, Again(block))


def stages(net: PanopticNet) -> None:
    """Checkpoint the body by stage."""
    net.body.backbone.checkpoint = True


def body_and_pyramid(net: PanopticNet) -> None:
    """Checkpoint body and pyramid, as `checkpoint_body`."""
    stages(net)
    net.body.checkpoint = True


SIDES: dict[str, Callable[[PanopticNet], None]] = {
    "everything kept": lambda net: None,
    "blocks": blocks,
    "stages": stages,
    "body + pyramid": body_and_pyramid,
}


def forward(module: TrainingModule, batch: Batch) -> Tensor:
    """Return the sum of the losses."""
    torch.manual_seed(0)
    return torch.stack(list(module(batch).means.values())).sum()


def step(module: TrainingModule, batch: Batch) -> None:
    """Run the forward and backward pass."""
    forward(module, batch).backward()
    module.zero_grad(set_to_none=True)


def kept_bytes(module: TrainingModule, batch: Batch) -> int:
    """Return the bytes of the tensors that a forward pass saves for the backward pass."""
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        forward(module, batch)
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="512x1024", help="HEIGHTxWIDTH of the image (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each side (default: %(default)s)")
    parser.add_argument("--config", default="cityscapes_r50", help="an experiment of configs/ (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    height, width = (int(n) for n in arguments.size.split("x"))
    batch = street(noise(height, width), VISTAS).to(device)
    config = load_config(train_step.CONFIGS / f"{arguments.config}.ini", overrides=["general.precision=fp32"])
    modules = {}
    for name, change in SIDES.items():
        torch.manual_seed(0)
        module = build_training_module(config, VISTAS.num_stuff, VISTAS.num_thing)
        modules[name] = module.to(device).train()
        assert isinstance(module.net, PanopticNet)
        change(module.net)
    kept = {name: kept_bytes(module, batch) / 2**20 for name, module in modules.items()}
    peaks = {name: peak_bytes(partial(step, m, batch), arguments.device) / 2**20 for name, m in modules.items()}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(arguments.rounds):
        for name, module in modules.items():
            side = train_step.Side(name, partial(step, module, batch))
            train_step.measure(side, device)
            seconds[name] += side.seconds
    print(f"torch {torch.__version__}, {device}, {height}x{width}\n")
    print(f"{'':<18}{'kept MiB':>10}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}{'s':>10}{'ratio':>8}")
    rows = {n: {"kept MiB": kept[n], "peak MiB": peaks[n], "step": statistics.median(seconds[n])} for n in SIDES}
    base = next(iter(rows.values()))
    for name, row in rows.items():
        digits = {"kept MiB": 1, "peak MiB": 1, "step": 2}
        print(f"{name:<18}" + "".join(f"{row[k]:>10.{d}f}{row[k] / base[k]:>8.2f}" for k, d in digits.items()))
    if arguments.json:
        facts = {"torch": torch.__version__, "device": arguments.device, "cpu": processor()}
        facts |= {"config": arguments.config, "size": arguments.size, "rounds": arguments.rounds}
        Path(arguments.json).write_text(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
