"""CPU time to import the package and to print help; with --against REV, the same of another revision, in turns.

    python benchmarks/startup.py --against v0.1.0 --rounds 9

Optional packages must cost nothing before they are used. Each figure is the median CPU time of a new process. The code
of the other revision is taken from git; both run in this environment and with its compiled operators.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = {
    "import seamseg": ("-c", "import seamseg"),
    "seamseg --help": ("-m", "seamseg", "--help"),
    "seamseg predict --help": ("-m", "seamseg", "predict", "--help"),
    "import seamseg.inference.predictor": ("-c", "import seamseg.inference.predictor"),
}


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REV", help="git revision to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the numbers to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = {"now": ROOT}
        if arguments.against:
            sides = {arguments.against: check_out(arguments.against, Path(folder)), **sides}
        seconds: dict[str, dict[str, list[float]]] = {case: {side: [] for side in sides} for case in CASES}
        for _ in range(arguments.rounds):
            for case, words in CASES.items():
                for side, path in sides.items():
                    seconds[case][side].append(cpu_seconds(words, path))
    medians = {case: {side: statistics.median(found[side]) for side in sides} for case, found in seconds.items()}
    print(f"{'CPU time in ms':36s}" + "".join(f"{side[:12]:>14s}" for side in sides) + "         ratio")
    for case, found in medians.items():
        ratio = found["now"] / next(iter(found.values()))
        print(f"{case:36s}" + "".join(f"{1000 * value:14.0f}" for value in found.values()) + f"{ratio:14.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=1))


def check_out(revision: str, folder: Path, compiled: bool = False) -> Path:
    """Write a revision to a folder: the package with the operators of this one, or all, compiled for the CPU."""
    command = ["git", "-C", str(ROOT), "archive", revision, *([] if compiled else ["seamseg"])]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        # an argument `filter` is refused before Python 3.11.4
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    if compiled:
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=folder, check=True, env=os.environ | {"SEAMSEG_KERNELS": "cpu"})
        return folder
    for file in [*(ROOT / "seamseg").glob("*.so"), ROOT / "seamseg" / "kernels.json"]:
        if file.exists():
            shutil.copy(file, folder / "seamseg")
    return folder


def cpu_seconds(words: tuple[str, ...], path: Path) -> float:
    """Return the CPU time of a Python process that finds the package in `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=path, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
