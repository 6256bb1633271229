"""The output formats of `predict`, which their modules register."""

from importlib import import_module

import seamseg.predicting.writers.images
import seamseg.predicting.writers.predictions  # noqa: F401
from seamseg.extensions import FORMATS

for module in FORMATS:
    import_module(module)
