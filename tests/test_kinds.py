"""Each package has an entry for each kind of network; a new kind that lacks one is noticed here."""

from __future__ import annotations

import pytest

from seamseg.config.kinds import KINDS
from seamseg.config.loader import default_config
from seamseg.contrib.classification.checkpoint import CLASSIFICATION
from seamseg.contrib.deploy.model_card import TASKS
from seamseg.contrib.serving.encoding import SERVED_KINDS
from seamseg.inference.results import RESULTS
from seamseg.maps.formats.exported import OUTPUTS
from seamseg.models.build import build_network
from seamseg.predicting.writers import formats_of
from seamseg.validation.validator import SCORERS

TABLES = {
    # classifiers have a validation of their own
    "validation/validator": [*SCORERS, CLASSIFICATION],
    "formats/exported": OUTPUTS,
    "inference/results": [kind for result in RESULTS for kind in result.kinds],
    "predict/writers": [kind for result in RESULTS for kind in result.kinds if formats_of(kind)],
    "serving/encoding": SERVED_KINDS,
    "deploy/model_card": TASKS,
}


@pytest.mark.parametrize("package", TABLES)
def test_kinds_of_a_package(package):
    assert set(TABLES[package]) == {*KINDS, CLASSIFICATION}


@pytest.mark.parametrize("kind", KINDS)
def test_network_of_a_kind(kind):
    net = build_network(default_config(kind), 2, 0 if kind == "semantic" else 3)
    assert net.kind == kind
    assert {name for name, part in net.named_children() if part is not None} == set(KINDS[kind].modules)
