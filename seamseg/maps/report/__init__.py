"""The report of an evaluation: a self-contained HTML file with scores, charts and images; of predictions the images."""

from seamseg.maps.report.build import find_evaluation, write_report
from seamseg.maps.report.gallery import is_gallery, write_gallery

__all__ = ["find_evaluation", "is_gallery", "write_gallery", "write_report"]
