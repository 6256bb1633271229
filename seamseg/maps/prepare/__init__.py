"""Converters to the dataset folder, and check, merge and export of dataset folders."""

from seamseg.maps.prepare.annotation_tools import prepare_cvat, prepare_label_studio
from seamseg.maps.prepare.check import check_dataset
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.prepare.coco_instances import prepare_instances
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.export import export_dataset
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.maps.prepare.merge import merge_datasets
from seamseg.maps.prepare.panoptic import prepare_coco, prepare_panoptic
from seamseg.maps.prepare.vistas import prepare_vistas

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
