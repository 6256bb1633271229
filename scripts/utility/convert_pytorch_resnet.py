"""The original's `convert_pytorch_resnet.py NET OUT`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from seamseg.cli.legacy import from_convert_resnet, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_convert_resnet))
