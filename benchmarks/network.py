"""Time whole networks on the CPU by stage: inference of vistas_r50, a training step of cityscapes_r50.

    python benchmarks/network.py [--rounds 3] [--sides 512 1024] [--plain] [inference] [training]

Weights are random with a fixed seed, the picture is a toy street enlarged, and the heads are given what a trained
network would give them: 1000 proposals, 100 detections; a training step samples 512 regions. `original` are the times
of the original implementation on this class of machine (2 cores, no GPU), measured with weights of their own. `--plain`
runs without the compiled operators.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ORIGINAL = {
    "inference 512": {"body": 0.97, "rpn": 0.47, "roi": 3.66, "semantic": 6.26, "fusion": 0.1},
    "inference 1024": {"body": 6.7, "rpn": 1.22, "roi": 2.85, "semantic": 53.8, "fusion": 0.3},
    "training 512": {"forward": 19.4, "backward": 23.2, "kept MiB": 1519.6},
}
"""Seconds of the original; a training step took 30 s in all when the machine was quiet."""
CONFIGS = Path(__file__).parents[1] / "configs"

Stages = dict[str, float]


class Watch:
    """Seconds of each stage of one run."""

    def __init__(self) -> None:
        self.stages: Stages = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        """Record the stage that ends here."""
        now = time.perf_counter()
        self.stages[stage] = now - self._last
        self._last = now


def inference(side: int) -> Callable[[], Stages]:
    """Make a network and an image; the returned function runs it once and returns the seconds of its stages."""
    import torch
    from street import smooth

    from seamseg.config import load_config
    from seamseg.models.build import build_network
    from seamseg.models.fusion import fuse, to_result
    from seamseg.structures import PackedSequence, Prediction

    torch.manual_seed(0)
    config = load_config(CONFIGS / "vistas_r50.ini")
    network = build_network(config, 28, 37).eval()
    image = smooth(side, side * 767 // 512, (16, 24))

    @torch.no_grad()
    def run() -> Stages:
        watch = Watch()
        features = network.encode(PackedSequence([image]))
        watch.stop("body")
        anchors, obj_logits, bbx_logits = network.score_anchors(features)
        make = network.options.proposals
        proposals = make(obj_logits, bbx_logits * 0.1, anchors, features.valid_sizes, training=False)
        watch.stop("rpn")
        network.detect(features, proposals)
        first = proposals[0]
        assert first is not None
        boxes = first[:100]
        classes = torch.arange(boxes.shape[0]) % 37
        masks = network.mask(features, [boxes], [classes])[0]
        watch.stop("roi")
        semantic = network.segment(features)[0]
        watch.stop("semantic")
        scores = torch.linspace(0.99, 0.6, boxes.shape[0])
        prediction = Prediction(boxes, classes, scores, masks, semantic, features.valid_sizes[0])
        to_result(fuse(prediction, 28), features.valid_sizes[0], 28)
        watch.stop("fusion")
        return watch.stages

    return run


def training(side: int, precision: str) -> Callable[[], Stages]:
    """Make a network and a batch of one image; the returned function runs a step without an optimiser."""
    import torch
    from street import CITYSCAPES, smooth, street

    from seamseg.config import load_config
    from seamseg.models.build import build_training_module

    torch.manual_seed(0)
    config = load_config(CONFIGS / "cityscapes_r50.ini")
    module = build_training_module(config, CITYSCAPES.num_stuff, CITYSCAPES.num_thing).train()
    batch = street([smooth(side, 2 * side, (16, 32))], CITYSCAPES)
    parameters = [p for p in module.parameters() if p.requires_grad]
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}

    def run() -> Stages:
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        watch = Watch()
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            losses = module(batch).means
            total = torch.stack(list(losses.values())).sum()
        watch.stop("forward")
        torch.autograd.grad(total, parameters, allow_unused=True)
        watch.stop("backward")
        return {**watch.stages, "kept MiB": sum(kept.values()) / 2**20}

    return run


def table(name: str, runs: list[Stages]) -> Stages:
    """Print medians beside the original's times, where measured at this size; return the medians."""
    medians = {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}
    print(f"\n{name:<20}{'ours':>10}{'original':>10}{'ratio':>8}")
    original = ORIGINAL.get(" ".join(name.split()[:2]), {})
    seconds = [stage for stage in medians if not stage.endswith("MiB")]
    rows = {stage: (medians[stage], original.get(stage)) for stage in medians}
    rows["all, s"] = (sum(medians[s] for s in seconds), sum(original[s] for s in seconds) if original else None)
    for stage, (ours, theirs) in rows.items():
        peer = f"{'-':>10}{'-':>8}" if theirs is None else f"{theirs:>10.2f}{theirs / ours:>8.1f}"
        print(f"{stage:<20}{ours:>10.3f}{peer}", flush=True)
    return medians


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="*", default=["inference", "training"], help="inference, training (default: both)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024], help="shortest sides for inference")
    parser.add_argument("--training-side", type=int, default=512, help="height for training (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="without the compiled operators")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if arguments.plain:
        os.environ["SEAMSEG_PLAIN_OPS"] = "1"
    from seamseg.cli import process_settings

    # as the command line does it, for all sides; docs/reference/performance.md
    process_settings.apply()
    cases = {f"inference {side}": partial(inference, side) for side in arguments.sides}
    side = arguments.training_side
    for precision in ("fp32", "bf16"):
        cases[f"training {side} {precision}"] = partial(training, side, precision)
    medians = {}
    for name, make in cases.items():
        if name.split()[0] in arguments.what:
            run = make()
            run()
            medians[name] = table(name, [run() for _ in range(arguments.rounds)])
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"plain": arguments.plain, "medians": medians}, file, indent=1)


if __name__ == "__main__":
    main()
