"""Classes by name: spelling, parts of Vistas' names, suggestions."""

import pytest

from seamseg.inference.results.base import choose_classes
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError


def of(*names):
    return Metadata(0, len(names), list(names), [(0, 0, 0)] * len(names), list(range(len(names))))


CITY = of("road", "traffic light", "person", "rider", "car")
VISTAS = of("human--person", "human--rider--bicyclist", "human--rider--motorcyclist", "object--vehicle--car")


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        (["Car", "traffic_light", "car"], CITY, [1, 4]),
        (" traffic-light ,", CITY, [1]),
        ("person", VISTAS, [0]),
        ("rider,car", VISTAS, [1, 2, 3]),
        ("human", VISTAS, [0, 1, 2]),
        ("object--vehicle--car", VISTAS, [3]),
    ],
)
def test_names(names, classes, expected):
    assert choose_classes(names, classes) == expected


@pytest.mark.parametrize(
    ("names", "classes", "message"),
    [
        ("persn", CITY, "no class 'persn'; did you mean person"),
        ("bicylist", VISTAS, "did you mean bicyclist"),
        ("Bicylist", VISTAS, "did you mean bicyclist"),
        ("cra", CITY, "did you mean car? its classes are road, traffic light, person, rider, car"),
        ("x", of(*(f"c{k}" for k in range(46))), "c18, c19 and 26 more"),
        ("human--car", VISTAS, "no class 'human--car'"),
        ("", CITY, "no class is given"),
    ],
)
def test_unknown_names(names, classes, message):
    with pytest.raises(InputError, match=r"^`hide`: ") as raised:
        choose_classes(names, classes, "hide")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
