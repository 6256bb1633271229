"""The original's `test_instance_seg.py [--meta M] [--threshold P] [--raw] CONFIG MODEL INPUT_DIR OUTPUT_DIR`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_test_instance_seg, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_test_instance_seg))
