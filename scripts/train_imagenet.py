"""The original's `train_imagenet.py CONFIG DATA [-j N] [-p N] [--resume F] [-e] [--log-dir D] [--log-hist]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_train_imagenet, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_train_imagenet))
