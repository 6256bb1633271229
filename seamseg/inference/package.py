"""Running an AOTInductor package (`.pt2`): the reader of the compiled networks that `seamseg export` writes.

A package holds machine code, which runs as soon as it is loaded. What is not a package of this project is refused
before that, by its list of files and its metadata; a package that was made to harm cannot be told from others, so load
those from trusted sources only.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.errors import InputError
from seamseg.utils.limits import MIB

_METADATA_BYTES = 8 * MIB
_MEMBERS = re.compile(
    r"\w[^/]*/(data/aotinductor/model/\w[\w.-]*|version|archive_format|archive_version|byteorder|\.data/version"
    r"|\.data/serialization_id|\.format_version|\.storage_alignment)"
)
"""Files of a package; those of other `.pt2` archives hold pickled objects."""
_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""Of x86 CPUs as torch names them, each with all before it."""


def read_package_metadata(path: Path) -> ExportedMetadata:
    """Return what a package states about its network; nothing in it is run, and torch is not imported.

    Raises
    ------
    InputError
        if the file cannot be read, or is no package of this project
    """
    return ExportedMetadata.from_json(_stated(path)[METADATA_KEY], str(path))


def _stated(path: Path) -> dict[str, str]:
    """Return the metadata of a package, all texts by their keys."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            foreign = [member.filename for member in members if not _MEMBERS.fullmatch(member.filename)]
            texts = [member for member in members if member.filename.endswith("_metadata.json")]
            if foreign or not texts:
                raise InputError(f"{path}: {_not_ours(foreign)}")
            if any(text.file_size > _METADATA_BYTES for text in texts):
                raise InputError(f"{path}: its metadata is larger than {_METADATA_BYTES // MIB} MiB: not loaded")
            if (damaged := archive.testzip()) is not None:
                raise InputError(f"{path}: a damaged package ({damaged:.80}): export it again")
            content = json.loads(archive.read(texts[0]))
    except OSError as error:
        raise InputError(f"{path}: cannot read the package: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, RecursionError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{path}: a damaged or truncated package: export it again") from error
    if not isinstance(content, dict) or not isinstance(content.get(METADATA_KEY), str):
        raise InputError(f"{path}: {_not_ours([])}")
    return {name: text for name, text in content.items() if isinstance(text, str)}


def _not_ours(foreign: list[str]) -> str:
    reason = f" (it holds {foreign[0]!r:.80})" if foreign else ""
    return f"not a package that seamseg exported{reason}: it is not loaded, as loading a package runs its code"


class PackageSession:
    """A package that is loaded, with the interface of :class:`seamseg.inference.onnx_engines.OnnxSession`.

    Parameters
    ----------
    path : of the package
    device : "auto", "cpu" or "cuda", with an index or not: of the type that the package was compiled for

    Attributes
    ----------
    exported : what the package states about the network
    device : that it runs on

    Raises
    ------
    InputError
        if it is no package of this project, or was compiled for another device, CPU or version of PyTorch
    """

    uses_torch = True

    def __init__(self, path: Path, device: str = "auto") -> None:
        stated = _stated(path)
        self.exported = ExportedMetadata.from_json(stated[METADATA_KEY], str(path))
        try:
            import torch

            import seamseg.ops  # noqa: F401  # the package calls them
        except ImportError as error:
            raise InputError(f"{path}: needs PyTorch ({error}), an .onnx file does not") from None
        compiled_for = stated.get("AOTI_DEVICE_KEY", "")
        self.device = compiled_for if device == "auto" else device
        _check(path, self.exported, compiled_for, self.device)
        index = torch.device(self.device).index
        try:
            # not through torch._inductor.aoti_load_package: that runs the C++ compiler to compare instruction sets
            self._loader = torch._C._aoti.AOTIModelPackageLoader(
                str(path), "model", False, 1, -1 if index is None else index
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{path}: this PyTorch ({torch.__version__}) cannot load the package: {reason}") from error

    def run(self, names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the network.

        Parameters
        ----------
        names : of the outputs to return
        inputs : `image` and, unless it is a classifier, `size`; see `seamseg/deploy/network.py`

        Raises
        ------
        InputError
            if the inputs do not fit the network: its code does not check them
        RuntimeError
            if the memory does not suffice
        """
        import torch

        arrays = _checked(inputs, self.exported)
        given = [torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays]
        with torch.inference_mode():
            outputs: list[Any] = self._loader.run(given)
        found = dict(zip(self.exported.extra.get("outputs", self.exported.outputs), outputs, strict=True))
        return [found[name].cpu().numpy() for name in names]


def _checked(inputs: Mapping[str, np.ndarray], exported: ExportedMetadata) -> list[np.ndarray]:
    """Return the inputs in order; InputError if their types or shapes are not those of the network."""
    image, classifier = inputs["image"], exported.kind == "classification"
    sides = image.shape[2:]
    fits = image.ndim == 4 and image.shape[1] == 3 and image.dtype == (np.float32 if classifier else np.uint8)
    if exported.size is not None:
        fits = fits and (image.shape[0], *sides) == (1, *exported.size)
    else:
        least, most = exported.sides or (1, 1)
        fits = fits and (classifier or image.shape[0] == 1) and len(sides) == 2
        fits = fits and all(least <= side <= most and side % exported.multiple == 0 for side in sides)
    if not fits:
        raise InputError(
            f"image: {image.dtype} {image.shape} is no input of this network: sides {exported.size or exported.sides}, "
            f"multiples of {exported.multiple}"
        )
    if classifier:
        return [image]
    size = inputs["size"]
    if size.shape != (2,) or size.dtype != np.int64 or not all(1 <= n <= side for n, side in zip(size, sides)):
        raise InputError(f"size: {size} is no valid part of an image of {sides[0]} x {sides[1]}")
    return [image, size]


def requirements(device: str) -> dict[str, str]:
    """Return what a package compiled here needs to run, for the `extra` of its metadata.

    `device` is the type that it is compiled for, "cpu" or "cuda".
    """
    import torch

    return {"device": device, "torch": _release(torch.__version__), "cpu": torch.backends.cpu.get_cpu_capability()}


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _check(path: Path, metadata: ExportedMetadata, compiled_for: str, device: str) -> None:
    """Raise InputError if a package does not run here."""
    here, wanted = requirements(device.partition(":")[0]), metadata.extra
    if compiled_for != here["device"]:
        raise InputError(f"{path}: was compiled for {compiled_for!r:.20}, not for {here['device']}: export it again")
    if compiled_for == "cuda" and not _has_gpu():
        raise InputError(f"{path}: was compiled for a GPU and needs a GPU that PyTorch finds: export it again")
    release = wanted.get("torch")
    if not isinstance(release, str) or not re.fullmatch(r"\d+\.\d+", release):
        raise InputError(f"{path}: does not state the version of PyTorch that it needs: export it again")
    if _numbers(release) > _numbers(here["torch"]):
        raise InputError(f"{path}: needs PyTorch {release}, this is {here['torch']}: update it or export again here")
    needed, mine = wanted.get("cpu"), here["cpu"]
    ranks = {name: rank for rank, name in enumerate(_CAPABILITIES)}
    if needed != mine and not (needed in ranks and mine in ranks and ranks[needed] < ranks[mine]):
        raise InputError(
            f"{path}: was compiled for CPUs with {needed!s:.20}, this one has {mine}: export it again here"
        )


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
