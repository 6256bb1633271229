"""Time a training step of a whole network on the CPU, and measure the memory that it keeps for the backward pass.

    python benchmarks/network.py [--rounds 3] [--side 512] [--config cityscapes_r50]
                                 [fp32 bf16 plain separated]

One image of `side` by twice as many pixels, an enlarged toy street with 20 things. Weights are random with a fixed
seed. A step is the forward and the backward pass with the losses, without an optimizer. `plain`: the algorithm of the
original, written plainly, in fp32 (examples/plain_seamless.py), with batch norm and LeakyReLU; `separated`: the same,
but for its large average pool, which goes along one axis after the other. The sides have the same weights and the same
settings of malloc and OpenMP, and take turns. Kept tensors are counted by saved-tensor hooks, each storage once,
without the parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "examples"))

SIDES = ("fp32", "bf16", "plain", "separated")


def make(name: str, module: Any, side: int) -> tuple[Callable[[], object], float]:
    """Return a function that runs a step of one side on an image of `side` rows, and the MiB that it keeps.

    `name` is one of :data:`SIDES`, `module` network and losses, which the sides of ours share.
    """
    import torch
    from memory import kept_bytes
    from plain_seamless import PlainTrainingModule
    from street import CITYSCAPES, smooth, street

    if name in ("plain", "separated"):
        module = PlainTrainingModule(module, name == "separated")
    torch.manual_seed(0)
    batch = street([smooth(side, 2 * side, (16, 32))], CITYSCAPES)

    def loss() -> torch.Tensor:
        # every side samples the same regions
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
            return torch.stack(list(module(batch).means.values())).sum()

    kept = kept_bytes(module, loss) / 2**20
    parameters = [p for p in module.parameters() if p.requires_grad]
    return lambda: torch.autograd.grad(loss(), parameters, allow_unused=True), kept


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", choices=[*SIDES, []], help="sides to time (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="steps of each side (default: %(default)s)")
    parser.add_argument("--side", type=int, default=512, help="height of the image (default: %(default)s)")
    parser.add_argument("--config", default="cityscapes_r50", help="an experiment of configs/ (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    from seamseg.utils import process

    # as the command line does it, for all sides; docs/reference/performance.md
    process.apply_settings()
    import torch
    from street import CITYSCAPES
    from timing import in_turns, processor

    from seamseg.config import load_config
    from seamseg.models.build import build_training_module

    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = load_config(arguments.config)
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    sides = {name: make(name, module, arguments.side) for name in arguments.sides or SIDES}
    found = in_turns({name: step for name, (step, _) in sides.items()}, arguments.rounds)
    facts = {"torch": torch.__version__, "threads": 2, "cpu": processor(), "load": os.getloadavg()[0]}
    facts |= {"config": arguments.config, "side": arguments.side, "rounds": arguments.rounds}
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(f"\n{'seconds':<16}{'step':>10}{'ratio':>10}{'CPU':>10}{'kept MiB':>10}")
    rows: dict[str, dict[str, float]] = {}
    for name, seconds in found.items():
        medians = {key: statistics.median(values) for key, values in seconds.items()}
        row = rows[name] = {"step": medians["wall"], "cpu": medians["cpu"], "kept MiB": sides[name][1]}
        ratio = row["step"] / rows[next(iter(rows))]["step"]
        print(f"{name:<16}{row['step']:>10.3f}{ratio:>10.2f}{row['cpu']:>10.3f}{row['kept MiB']:>10.1f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(facts | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
