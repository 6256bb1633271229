"""Each kind of network has results, scores and output formats; a new kind that lacks one is noticed here."""

import pytest

from seamseg.config.kinds import KINDS
from seamseg.config.loader import default_config
from seamseg.inference.results import RESULTS
from seamseg.models.build import build_network
from seamseg.predicting.folder import formats_of
from seamseg.validation.validator import scorer_of


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind(kind):
    assert kind in RESULTS[kind].kinds
    assert formats_of(kind)
    assert scorer_of(kind).result is RESULTS[kind]
    net = build_network(default_config(kind), 2, 0 if kind == "semantic" else 3)
    assert net.kind == kind
    assert {name for name, part in net.named_children() if part is not None} == set(KINDS[kind].modules)
