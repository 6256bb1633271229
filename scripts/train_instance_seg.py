"""The original's `train_instance_seg.py`, whose arguments are those of `train_panoptic.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_train_instance_seg, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_train_instance_seg))
