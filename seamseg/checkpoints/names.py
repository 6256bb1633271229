"""Names of the files of a model of ours, see :mod:`seamseg.checkpoints.model_path`."""

from __future__ import annotations

SNAPSHOT_NAMES = ("model_best.pth.tar", "model_last.pth.tar")
"""Snapshots of a run folder, in order of preference."""

CONFIG_NAME = "config.ini"
METADATA_NAME = "metadata.bin"

WEIGHTS_NAME = "model.safetensors"
WEIGHTS_ENDING = ".safetensors"
CLASSES_NAME = "metadata.json"
"""Classes, kind and licence beside the weights, see :mod:`seamseg.contrib.deploy.model_folder`."""

CLASSIFIER_CONFIG_NAME = "config.json"
CLASSIFIER_CLASSES_NAME = "classes.json"
MODEL_FILES = (WEIGHTS_NAME, CONFIG_NAME, CLASSES_NAME, CLASSIFIER_CONFIG_NAME, CLASSIFIER_CLASSES_NAME)
"""Files of a model without pickles, a classifier's included."""
