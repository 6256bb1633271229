"""The packaged experiments (`configs/*.ini` and `configs/imagenet/*.json`), of a clone or an installation."""

from __future__ import annotations

from pathlib import Path

from seamseg.utils.errors import InputError, did_you_mean, near_names

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")
"""Folders of the configurations of an installed package, and of a clone."""

CLASS_TABLES = "classes/*.ini"
"""Pattern of the tables of classes, see :mod:`seamseg.checkpoints.class_table`."""


def experiments(pattern: str = "*.ini") -> dict[str, Path]:
    """Return the packaged experiments by name, or the files of another pattern, such as :data:`CLASS_TABLES`."""
    for folder in _FOLDERS:
        found = {path.stem: path for path in sorted(folder.glob(pattern))}
        if found:
            return found
    return {}


def packaged(name: str) -> Path | None:
    """Return the file of a packaged experiment (`vistas_r50` or `vistas_r50.ini`), None for an unknown name."""
    return experiments().get(name.removesuffix(".ini"))


def find_experiment(name: str) -> Path:
    """Return the file of a packaged experiment; InputError, with the nearest name, if there is none."""
    path = packaged(name)
    if path is None:
        known = experiments()
        meant = did_you_mean(name.removesuffix(".ini"), known) or f"; the experiments are {', '.join(known) or 'none'}"
        raise InputError(f"no packaged experiment {name!r}{meant}")
    return path


def near_files(path: Path, pattern: str = "*.ini") -> str:
    """Return a suggestion for the error about a missing config file, or an empty string; see :func:`experiments`."""
    names, known = {p.name: p for p in path.parent.glob(Path(pattern).name)}, experiments(pattern)
    if match := near_names(path.name, names):
        return f"; did you mean {names[match[0]]}?"
    if match := near_names(path.stem, known):
        return f"; did you mean the packaged experiment {match[0]}?"
    return f"; packaged are {', '.join(known)}" if known and path.name == str(path) and not path.suffix else ""


TINY_NETWORK = """
[general]
log_interval = 1
min_stuff_area = 16
[fpn]
out_channels = 16
[rpn]
hidden_channels = 16
anchor_scale = 2
num_pre_nms_train = 50
num_post_nms_train = 20
num_pre_nms_val = 50
num_post_nms_val = 20
min_size = 0
num_samples = 16
[roi]
num_samples = 8
fc_channels = 16
conv_channels = 8
fpn_canonical_scale = 32
max_predictions = 10
[sem]
hidden_channels = 8
pooling_size = (4, 4)
"""
"""Sections of a network that trains in seconds."""
