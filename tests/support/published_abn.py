"""The interface of the `inplace-abn` package as recorded in `tests/golden/inplace_abn.json`."""

import inspect
import json

from support.golden_files import DATA

PUBLISHED = json.loads((DATA / "inplace_abn.json").read_text())
LAYERS = ("ABN", "InPlaceABN", "InPlaceABNSync")
SIGNATURES = {
    name: [(key, default[0] if default else inspect.Parameter.empty) for key, *default in entries]
    for name, entries in PUBLISHED["signatures"].items()
}
LAYER_OPTIONS = [name for name, _ in SIGNATURES["ABN"]]


def parameters(function):
    """Names and defaults of the parameters of a function or class."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
