#!/usr/bin/env python3
"""The original's backbone converter; see `seamseg convert-backbone --help`."""

import sys

from seamseg.cli.legacy import run, translate_backbone

if __name__ == "__main__":
    sys.exit(run(translate_backbone))
