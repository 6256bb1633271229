"""The page of an evaluation: one HTML file with scores, charts and pictures that asks the network for nothing."""

from seamseg.report.build import ReportOptions, find_evaluation, write_report

__all__ = ["ReportOptions", "find_evaluation", "write_report"]
