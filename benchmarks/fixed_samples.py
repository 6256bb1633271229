"""Compare a training step with fixed samples and one with exact samples.

    python benchmarks/fixed_samples.py [--rounds 7] [--threads 1] [--device cuda] [--side 512]

The network, the image and the 20 things are those of `benchmarks/network.py`; the two ways take turns. `ratio` is how
many times faster fixed samples are. A CPU has no host waits to save: there the ratio is the cost of the fixed shapes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from street import CITYSCAPES, smooth, street
from timing import Case, options, report

from seamseg.config import load_config
from seamseg.models.build import build_training_module


def step(fixed: bool, side: int, experiment: str, device: str) -> Callable[[], None]:
    """Make a network and a batch; the result takes one step without an optimiser."""
    from network import CONFIGS

    torch.manual_seed(0)
    config = load_config(CONFIGS / f"{experiment}.ini", overrides=[f"roi.fixed_samples={'yes' if fixed else 'no'}"])
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train().to(device)
    batch = street([smooth(side, 2 * side, (16, 32))], CITYSCAPES).with_target_info().to(device)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def run() -> None:
        total = torch.stack(list(module(batch).means.values())).sum()
        torch.autograd.grad(total, parameters, allow_unused=True)

    return run


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--config", default="cityscapes_r50", help="an experiment of configs/ (default: %(default)s)")
    parser.add_argument("--side", type=int, default=512, help="height of the image (default: %(default)s)")
    arguments = parser.parse_args()

    def case() -> Case:
        sides = (step(fixed, arguments.side, arguments.config, arguments.device) for fixed in (True, False))
        return Case(f"training step, {arguments.side} x {2 * arguments.side}", "exact samples", *sides)

    report([("training step", case)], arguments)


if __name__ == "__main__":
    main()
