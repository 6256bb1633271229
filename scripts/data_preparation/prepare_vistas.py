"""The original's `prepare_vistas.py ROOT OUT`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from seamseg.cli.legacy import from_prepare_vistas, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_prepare_vistas))
