"""`python -m seamseg` is the command line."""

import sys

from seamseg.cli.main import main

sys.exit(main())
