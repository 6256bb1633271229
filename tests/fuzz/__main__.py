"""Run a fuzzer: `python tests/fuzz TARGET [libFuzzer options]`, with atheris installed; see targets.py."""

import os
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["seamseg", "umsgpack", "configparser", "tarfile", "zipfile", "PIL"]
"""Their branches are counted."""


def main():
    name, options = sys.argv[1], sys.argv[2:]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for module in PACKAGES:
        sys.modules.pop(module, None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as temporary:
        folder = Path(temporary)
        with atheris.instrument_imports(include=PACKAGES):
            from fuzz import targets

            targets.write_files(folder)
            # imports of the readers happen in their first calls
            for data in targets.corpus(name).values():
                targets.attempt(name, data, folder)
        if not any(Path(option).exists() for option in options):
            (seeds := folder / "corpus").mkdir()
            for key, data in targets.corpus(name).items():
                (seeds / key).write_bytes(data)
            options.append(str(seeds))
        atheris.Setup([sys.argv[0], *options], lambda data: targets.attempt(name, data, folder))
        atheris.Fuzz()


main()
