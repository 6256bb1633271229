"""AOTInductor packages: a network compiled to machine code in one `.pt2` file, for Python and for C++.

The operators of this package stay in the compiled code as calls: a program loads their library, `seamseg/_C*.so`, which
needs no Python. The package itself is a program, too: whoever loads it runs what is in it.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seamseg.config import config_from_string
from seamseg.contrib.deploy.network import ExportNet, failures_in_one_line, trace
from seamseg.contrib.exported.package import ONEDNN_BF16, cpu_features, requirements
from seamseg.inference.acceleration import compiler_problem
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.errors import SeamsegError
from seamseg.utils.parallel import available_cores

_MARCH = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}
"""Architectures of all CPUs with a capability of torch; left alone, the compiler uses all that this CPU has.

Inductor allows further instruction sets, such as VNNI and AMX; the kernels of oneDNN are chosen when they run."""


def write_package(net: ExportNet, target: Path, metadata: ExportedMetadata, size: tuple[int, int]) -> None:
    """Compile a network for its device and write it, which takes minutes; `size` is that of the example."""
    device = next(net.parameters()).device
    problem = compiler_problem(device)
    if problem is not None:
        raise SeamsegError(f"{target}: a package is compiled, but the compiler does not work here ({problem})")
    march, here = _MARCH.get(torch.backends.cpu.get_cpu_capability()), cpu_features()
    # the instruction sets that the code may contain, beside those of its architecture
    if march is None or not hasattr(torch._inductor.config.cpp, "march"):
        march, features = None, here - {ONEDNN_BF16}
    else:
        flags = torch._inductor.cpu_vec_isa.pick_vec_isa().build_arch_flags()
        features = set(re.findall(r"-m(?!arch)([\w-]+)(?!\S)", flags))
    if metadata.precision == "bf16":
        features |= {ONEDNN_BF16} & here
    needed = requirements(device.type, sorted(features))
    stated = replace(metadata, extra={**metadata.extra, "outputs": list(net.output_names), **needed})
    settings: dict[str, Any] = {
        # weights become constants that oneDNN packs once
        "freezing": True,
        # as many threads as the program has, not as many as the compiler had
        "cpp.dynamic_threads": True,
        "cpp.threads": max(available_cores(), 2),
        "aot_inductor.metadata": package_metadata(stated),
        **({} if march is None else {"cpp.march": march}),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that renaming is atomic
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        made = Path(folder, "network.pt2")
        problem = f"{target}: AOTInductor cannot compile this network"
        # gradients switched off: freezing is skipped otherwise
        with failures_in_one_line(problem, net, metadata.size is None), torch.no_grad():
            program = trace(net, size, metadata.multiple, metadata.sides)
            torch._inductor.aoti_compile_and_package(program, package_path=str(made), inductor_configs=settings)
        os.replace(made, target)


def package_metadata(metadata: ExportedMetadata) -> dict[str, str]:
    """Return the metadata as JSON, and for C++ programs those of a panoptic network as plain texts."""
    entries = {METADATA_KEY: metadata.to_json()}
    if not {"count", "classmap"} <= set(metadata.extra["outputs"]):
        return entries
    height, width = metadata.size or ("", "")
    free = ("", "", "") if metadata.sides is None else (*metadata.sides, metadata.multiple)
    sizes = config_from_string(metadata.config, exported=True).dataloader
    plain = {
        "part": metadata.part,
        "height": height,
        "width": width,
        **dict(zip(("smallest_side", "largest_side", "multiple"), free)),
        "num_stuff": metadata.metadata.num_stuff,
        "categories": "\n".join(name.replace("\n", " ") for name in metadata.metadata.categories),
        **{name: getattr(sizes, name) or "" for name in ("shortest_size", "longest_size", "longest_max_size")},
        **metadata.thresholds,
    }
    return entries | {f"{METADATA_KEY}.{name}": str(value) for name, value in plain.items()}
