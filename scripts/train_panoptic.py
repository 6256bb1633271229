#!/usr/bin/env python3
"""The original's training command; see `seamseg train --help`."""

import sys

from seamseg.cli.legacy import run, translate_train

if __name__ == "__main__":
    sys.exit(run(translate_train))
