"""The original's `train_detection.py [--log_dir D] [--resume F] [--eval] [--pre_train [module:]F ...] CONFIG DATA`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_train_detection, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_train_detection))
