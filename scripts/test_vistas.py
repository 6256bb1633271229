"""The original's `test_vistas.py [--scales LIST] [--flip] [--fusion-mode M] [--output-mode M] SNAPSHOT IN OUT`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from seamseg.cli.legacy import from_test_vistas, run_script

if __name__ == "__main__":
    sys.exit(run_script(from_test_vistas))
