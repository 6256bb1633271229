"""Compare a forward pass of the ResNet-50 body with the defaults of glibc and the settings of the command line.

    python benchmarks/malloc.py [--rounds 3] [--json FILE]

Each measurement is a process of its own, because the settings are read when one starts. Prints medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from seamseg.utils.process_settings import MALLOC

SETTINGS = {name: str(value) for name, value in MALLOC.items()}

_FORWARD = """
import time, torch
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import InPlaceABN
net = ResNet(RESNETS["resnet50"], InPlaceABN).eval().to(memory_format=torch.channels_last)
x = torch.randn(1, 3, 512, 1024).to(memory_format=torch.channels_last)
times = []
with torch.inference_mode():
    net(x)
    for _ in range(5):
        start = time.perf_counter()
        net(x)
        times.append(time.perf_counter() - start)
print(sorted(times)[2])
"""


def seconds(settings: dict[str, str]) -> float:
    """Return the median seconds of a forward pass in a fresh process with only these variables of glibc."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings
    done = subprocess.run([sys.executable, "-c", _FORWARD], env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    pairs = [(seconds({}), seconds(SETTINGS)) for _ in range(arguments.rounds)]
    default, kept = (statistics.median(column) for column in zip(*pairs))
    print(f"glibc defaults {default:.3f} s, buffers kept {kept:.3f} s: ratio {default / kept:.2f}")
    if arguments.json:
        numbers = {"rounds": arguments.rounds, "default": default, "kept": kept, "ratio": default / kept}
        Path(arguments.json).write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
