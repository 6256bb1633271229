"""Count the functions of the package that `seamseg predict` of one image runs, and the files they are in.

    python benchmarks/calls.py [--model runs/demo --image street.jpg] [--json FILE]

A function counts once, however often it is called; code of modules and classes, lambdas and comprehensions do not
count. `--workers 0` decodes in the process that is counted, so all threads and no other process take part. Without
--model `seamseg demo` makes one of a few images in a temporary folder. `before the image is opened` is what ran until
the operating system was asked to open it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

COUNT = """
import json, os, sys, threading
from inspect import CO_OPTIMIZED
from pathlib import Path

import seamseg
from seamseg.cli.main import main

image, out, found, opened = os.path.realpath(sys.argv[2]), sys.argv[4], {}, []
package = os.path.dirname(seamseg.__file__) + os.sep


def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code not in found and code.co_filename.startswith(package):
        if code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<"):
            found[code] = not opened


def audit(event, arguments):
    if event == "open" and not opened and isinstance(arguments[0], (str, os.PathLike)):
        if os.path.realpath(arguments[0]) == image:
            opened.append(True)


sys.addaudithook(audit)
threading.setprofile(profile)
sys.setprofile(profile)
code = main(["predict", *sys.argv[1:3], sys.argv[3], "--device", "cpu", "--workers", "0", "--quiet"])
sys.setprofile(None)
assert code == 0 and opened, (code, opened)
rows = [(c.co_filename.removeprefix(package), c.co_name, early) for c, early in found.items()]
Path(out).write_text(json.dumps(rows))
"""


def demo(folder: Path) -> tuple[Path, Path]:
    """Train the demo for a step; return the model and a held-out image."""
    command = [sys.executable, "-m", "seamseg", "demo", "--out", str(folder), "--train", "2", "--val", "1"]
    for setting in ("scheduler.epochs=1", "scheduler.burn_in_steps=0", "dataloader.train_batch_size=2"):
        command += ["--set", setting]
    subprocess.run([*command, "--device", "cpu"], check=True, stdout=sys.stderr)
    data = folder / "toy_city" / "data"
    return folder, next((data / "img").glob(f"{(data / 'lst' / 'val.txt').read_text().split()[0]}.*"))


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="run folder (default: a demo of one step)")
    parser.add_argument("--image", type=Path, help="image for --model")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.image is None):
        parser.error("give --model and --image together")
    with tempfile.TemporaryDirectory(prefix="seamseg-calls-") as name:
        folder = Path(name)
        model, image = (arguments.model, arguments.image) if arguments.model else demo(folder / "demo")
        command = [sys.executable, "-c", COUNT, str(model), str(image), str(folder / "out"), str(folder / "found")]
        subprocess.run(command, check=True, stdout=sys.stderr)
        rows = json.loads((folder / "found").read_text())
    before = [row for row in rows if row[2]]
    result = {"functions": len(rows), "files": len({row[0] for row in rows}), "functions before": len(before)}
    print("{} functions in {} files, {} of them before the image is opened".format(*result.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
