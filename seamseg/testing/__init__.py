"""Check that a component works in all that a training, an evaluation and a prediction do; for tests of your own.

    from seamseg.testing import check_component

    def test_edges():
        check_component("edges.py")

`python -m seamseg.testing edges.py` prints what was checked; `--help` lists the options.
"""

from seamseg.testing.check import check_component

__all__ = ["check_component"]
