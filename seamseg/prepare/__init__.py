"""Converters to the dataset folder, and check, merge and export of dataset folders."""

from seamseg.prepare.annotation_tools import prepare_cvat, prepare_label_studio
from seamseg.prepare.check import check_dataset
from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.coco_instances import prepare_instances
from seamseg.prepare.convert import ConversionOptions
from seamseg.prepare.export import export_dataset
from seamseg.prepare.label_folders import prepare_folders
from seamseg.prepare.merge import merge_datasets
from seamseg.prepare.panoptic import prepare_coco, prepare_panoptic
from seamseg.prepare.vistas import prepare_vistas

__all__ = [
    "ConversionOptions",
    "check_dataset",
    "export_dataset",
    "merge_datasets",
    "prepare_cityscapes",
    "prepare_coco",
    "prepare_cvat",
    "prepare_folders",
    "prepare_instances",
    "prepare_label_studio",
    "prepare_panoptic",
    "prepare_vistas",
]
