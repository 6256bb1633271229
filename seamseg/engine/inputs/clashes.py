"""Outputs that would replace a photo, or each other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from seamseg.engine.inputs.source import Source
from seamseg.errors import InputError


def refuse_overwriting(sources: Iterable[Source], outputs: Iterable[Path]) -> None:
    """InputError if an output would replace one of the photos."""
    photos = {_real(source.path) for source in sources if not source.address}
    for output in outputs:
        if _real(output) in photos:
            raise InputError(f"{output}: this output would overwrite an input photo; choose another output folder")


def _real(path: Path) -> str:
    """The path without links; of a million files in few folders at little cost."""
    return os.path.realpath(path) if os.path.islink(path) else os.path.join(_real_folder(path.parent), path.name)


@lru_cache(4096)
def _real_folder(folder: Path) -> str:
    return os.path.realpath(folder)


def refuse_sharing(sources: Iterable[Source], outputs: Iterable[Sequence[Path]]) -> None:
    """InputError if two photos would be written to one file; `outputs` has the files of each photo."""
    owners: dict[str, Source] = {}
    for source, paths in zip(sources, outputs):
        for path in paths:
            # some file systems do not tell cases apart
            owner = owners.setdefault(str(path).casefold(), source)
            if owner is not source:
                raise InputError(
                    f"{owner} and {source} would both be written to {path}: this format has no sub-folders; "
                    "give them different names or predict each folder into an output folder of its own"
                )
