"""The folder of the outputs of `predict`, with the manifest of what is done."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from seamseg.maps.images import PHOTO_ENDINGS
from seamseg.predicting.find import TAR_ENDINGS
from seamseg.predicting.manifest import MANIFEST, Done, Line, ManifestFolder
from seamseg.predicting.source import Source
from seamseg.predicting.video import Video
from seamseg.predicting.writers import OutputFormat, errors_of
from seamseg.utils.errors import InputError, SeamsegError, describe_error
from seamseg.utils.files import cannot_write, lock_file, make_folder, refuse_links, refuse_url

LOCK_NAME = ".predictions.lock"


def output_path(out: str) -> Path:
    """Return the folder of OUT; InputError if it is a URL, a file, empty, or looks like an image or a tar."""
    if not out.strip():
        raise InputError("OUT is empty, is a variable not set? `.` is the working folder")
    path = Path(out)
    if path.is_dir():
        return path
    refuse_url(out)
    if out.lower().endswith(PHOTO_ENDINGS):
        raise InputError(f"{out}: looks like an image; the last argument must be the folder for the outputs")
    if out.lower().endswith(TAR_ENDINGS):
        raise InputError(f"{out}: OUT is a folder, no tar")
    if path.exists():
        raise InputError(f"{out}: the output must be a folder, this is a file; OUT is the last argument")
    return path


class OutputFolder:
    """The folder, the formats that write there, and the manifest.

    Parameters
    ----------
    out : the folder
    writers : the formats
    head : first line of the manifest
    """

    def __init__(self, out: Path, writers: Sequence[OutputFormat[Any]], head: Line) -> None:
        self.out = out
        self.writers = writers
        self.manifest = ManifestFolder(out, head)

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs out of the folder for a `with` block; InputError if one is in it."""
        make_folder(self.out)
        return lock_file(
            self.out / LOCK_NAME,
            "another `seamseg predict` is writing to this folder: wait until it ends, or choose another folder (for "
            "more processes in one run use torchrun)",
        )

    def begin(self, sources: Sequence[Source | Video], restart: bool) -> dict[str, Done]:
        """Tidy up and return the images that earlier runs have done; called by the main process alone.

        Parameters
        ----------
        sources : images of this run
        restart : forget earlier results

        Raises
        ------
        InputError
            if they are of another model or other settings, or an unknown file would be overwritten
        """
        # a new folder needs no look-up of a million file names
        used = any(name != LOCK_NAME for name in os.listdir(self.out))
        if used:
            for folder in {path.parent for path in self._planned(sources)}:
                refuse_links(self.out, folder / "file")
        if used and not restart and not self.manifest.exists():
            for path in self._planned(sources):
                if os.path.exists(path):
                    raise InputError(
                        f"{path}: exists already, and no {MANIFEST} lists it as an output of `seamseg predict`; choose "
                        "another folder for the outputs, or overwrite it with `restart=True`"
                    )
        return self.manifest.begin(restart)

    def refuse_links(self, source: Source) -> None:
        """Raise InputError if an output of an image would be written through a link out of the folder."""
        for folder in {path.parent for writer in self.writers for path in writer.paths(source)}:
            refuse_links(self.out, folder / "file")

    def _planned(self, sources: Sequence[Source | Video]) -> Iterator[Path]:
        """Iterate over the files that will be written, as far as they are known in advance."""
        for writer in self.writers:
            yield from writer.finals()
            for source in sources:
                if isinstance(source, Source):
                    yield from writer.paths(source)

    def outputs_of(self, source: Source) -> Line:
        """Return the entries of a line about the planned files of an image, relative to the folder.

        `empty` has those without a byte, such as a list of no instances.
        """
        paths = [path for writer in self.writers for path in writer.paths(source)]
        names = [path.relative_to(self.out).as_posix() for path in paths]
        empty = [name for name, path in zip(names, paths) if path.is_file() and path.stat().st_size == 0]
        return {"outputs": names, "empty": empty} if empty else {"outputs": names}

    def finish(self) -> None:
        """Merge the manifests, and write the files about all images; called by the main process at the end."""
        self.manifest.merge()
        for position, writer in enumerate(self.writers):
            try:
                with errors_of(writer):
                    writer.finish(self.manifest.records(position))
            except OSError as error:
                raise cannot_write(error.filename or "output", error) from error
            except SeamsegError:
                raise
            except Exception as error:  # lines of another hand
                raise InputError(
                    f"{self.manifest.path}: has a line that no file about all images can be made of "
                    f"({describe_error(error)}); `restart=True` starts over"
                ) from error
