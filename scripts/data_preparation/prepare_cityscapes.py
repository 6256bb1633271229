#!/usr/bin/env python3
"""The original's Cityscapes converter; see `seamseg prepare cityscapes --help`."""

import sys

from seamseg.cli.legacy import run, translate_cityscapes

if __name__ == "__main__":
    sys.exit(run(translate_cityscapes))
