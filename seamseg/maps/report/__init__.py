"""The report of an evaluation: a self-contained HTML file with scores, charts and images."""

from seamseg.maps.report.build import find_evaluation, write_report

__all__ = ["find_evaluation", "write_report"]
