"""Running an AOTInductor package (`.pt2`): the reader of the compiled networks that `seamseg export` writes.

A package holds machine code, which runs as soon as it is loaded: it is a program, load those that you trust. A file
that does not state to be a package of this project is refused before that.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.distributed import local_rank
from seamseg.utils.errors import InputError, one_line

ONEDNN_BF16 = "convolutions in bfloat16"
"""The feature of a CPU that the bfloat16 operators of oneDNN need: more than the code of a package does."""

_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""Capabilities of x86 CPUs as torch names them; each includes all before it."""


def _stated(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(damaged)
            texts = [name for name in archive.namelist() if name.endswith("_metadata.json")]
            content = json.loads(archive.read(texts[0])) if texts else {}
    except OSError as error:
        raise InputError(f"{path}: cannot read the package: {error.strerror or error}") from error
    except Exception as error:  # zipfile raises nearly any for a damaged file
        raise InputError(f"{path}: a damaged or truncated package: export it again") from error
    if not isinstance(content, dict) or not isinstance(content.get(METADATA_KEY), str):
        raise InputError(
            f"{path}: not a package that seamseg exported: it is not loaded, as loading a package runs its code"
        )
    return content


class PackageSession:
    """A package that is loaded, with the interface of :class:`seamseg.contrib.exported.onnx_engines.OnnxSession`.

    `device` is "auto", "cpu" or "cuda", with an index or not: of the type that the package was compiled for. Without an
    index it is the GPU of the local rank of the launcher. InputError if it is no package of this project, or was
    compiled for another device, CPU or a later PyTorch.
    """

    uses_torch = True

    def __init__(self, path: Path, device: str = "auto") -> None:
        stated = _stated(path)
        self.exported = ExportedMetadata.from_json(stated[METADATA_KEY], str(path))
        self.outputs: Sequence[str] = self.exported.extra.get("outputs", ())
        try:
            import torch

            import seamseg.ops  # noqa: F401  # the package calls them
            from seamseg.utils.distributed import choose_device
        except ImportError as error:
            raise InputError(f"{path}: needs PyTorch ({error}), an .onnx file does not") from None
        compiled_for = stated.get("AOTI_DEVICE_KEY", "")
        wanted = compiled_for if device == "auto" else device
        _check(path, self.exported, compiled_for, wanted)
        chosen = choose_device(wanted, local_rank())
        self.device, index = str(chosen), chosen.index
        try:
            # not through torch._inductor.aoti_load_package: that runs the C++ compiler to compare instruction sets
            self._loader = torch._C._aoti.AOTIModelPackageLoader(
                str(path), "model", False, 1, -1 if index is None else index
            )
        except RuntimeError as error:
            reason = one_line(error)[:200]
            raise InputError(f"{path}: this PyTorch ({torch.__version__}) cannot load the package: {reason}") from error

    def run(self, names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return outputs by their names, for `image` of a size that fits and, unless it is a classifier, `size`.

        RuntimeError if the memory does not suffice.
        """
        import torch

        arrays = [inputs[name] for name in ("image", "size") if name in inputs]
        given = [torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays]
        with torch.inference_mode():
            outputs: list[Any] = self._loader.run(given)
        found = dict(zip(self.outputs, outputs, strict=True))
        return [found[name].cpu().numpy() for name in names]


def requirements(device: str, features: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a package compiled here, for "cpu" or "cuda", needs to run: the `extra` of its metadata."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    release = ".".join(torch.__version__.split(".")[:2])
    return {"device": device, "torch": release, "cpu": capability, "cpu_features": list(features)}


def cpu_features() -> set[str]:
    """Return the names of the instruction sets of this CPU as torch writes them, and perhaps :data:`ONEDNN_BF16`."""
    import torch

    from seamseg.ops.fused import onednn_takes_bf16

    found = {name for name, value in torch.cpu.get_capabilities().items() if value is True}
    return found | ({ONEDNN_BF16} if onednn_takes_bf16() else set())


def missing_features(needed: Iterable[str]) -> list[str]:
    """Return the instruction sets that this CPU lacks, of names in torch or in flags of compilers."""
    here = {_plain_name(name) for name in cpu_features()}
    return [name for name in needed if _plain_name(name) not in here]


def _plain_name(feature: str) -> str:
    """Return a name that torch (`avx512_vnni`, `fma3`) and compilers (`avx512vnni`, `amx-tile`, `fma`) share."""
    return feature.replace("_", "").replace("-", "").replace("fma3", "fma")


def _check(path: Path, metadata: ExportedMetadata, compiled_for: str, device: str) -> None:
    """Raise InputError if a package does not run here."""
    import torch

    here, wanted = requirements(device.partition(":")[0]), metadata.extra
    if compiled_for != here["device"]:
        raise InputError(f"{path}: was compiled for {compiled_for!r:.20}, not for {here['device']}: export it again")
    if compiled_for == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{path}: was compiled for a GPU and needs a GPU that PyTorch finds: export it again")
    release, needed, mine = str(wanted["torch"]), wanted["cpu"], here["cpu"]
    if [*map(int, release.split("."))] > [*map(int, here["torch"].split("."))]:
        raise InputError(f"{path}: needs PyTorch {release}, this is {here['torch']}: update it or export again here")
    # each includes all before it
    enough = _CAPABILITIES[: _CAPABILITIES.index(mine) + 1] if mine in _CAPABILITIES else (mine,)
    if needed not in enough:
        raise InputError(f"{path}: was compiled for CPUs with {needed}, this one has {mine}: export it again here")
    if missing := missing_features(wanted["cpu_features"]):
        raise InputError(f"{path}: needs {', '.join(missing)}, which this CPU lacks: export it again here")
