#!/usr/bin/env python3
"""The original's inference command; see `seamseg predict --help`."""

import sys

from seamseg.cli.legacy import run, translate_test

if __name__ == "__main__":
    sys.exit(run(translate_test))
