"""The original's `test_imagenet.py CONFIG CHECKPOINT DATA [-j N] [-p N] [-c N] [-s N] [--ten_crops]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_test_imagenet, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_test_imagenet))
