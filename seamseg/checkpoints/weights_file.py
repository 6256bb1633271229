"""Weights as safetensors: tensors by name without a pickle (docs/contract.md, section 1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from seamseg.utils.errors import InputError, one_line, require_module
from seamseg.utils.files import nearest_path, replacing

_LFS_POINTER = b"version https://git-lfs"


def read_weights(path: str | Path, name: str) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, on the CPU; they are mapped into memory. Errors call the file `name`."""
    load_file = require_module("safetensors.torch", name).load_file
    try:
        with open(path, "rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise InputError(f"{name}: is a Git LFS pointer: run `git lfs pull`")
        return dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"{name}: no such file{nearest_path(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder, not a file of weights") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
    except InputError:
        raise
    except Exception as error:  # parsing untrusted bytes can raise any exception
        reason = one_line(error)[:120]
        raise InputError(f"{name}: truncated, damaged, or not a safetensors file ({reason}); copy it again") from None


def write_weights(path: Path, state: Mapping[str, Mapping[str, Tensor]] | Mapping[str, Tensor]) -> None:
    """Write tensors by name, or state dicts by part, whose tensors get names `PART.KEY`, as a safetensors file."""
    save_file = require_module("safetensors.torch", str(path)).save_file
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        tensors |= {name: value} if isinstance(value, Tensor) else {f"{name}.{k}": v for k, v in value.items()}
    with replacing(path) as temporary:
        # the library makes files that only their owner may read
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file({name: _own_storage(tensor) for name, tensor in tensors.items()}, temporary, {"format": "pt"})
        except OSError:
            raise
        except Exception as error:  # a full disk is an error of the library
            raise OSError(one_line(error)[:200]) from error
        temporary.chmod(mode)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())


def _own_storage(tensor: Tensor) -> Tensor:
    """Return a tensor that fills its storage, as safetensors requires; a copy if it is part of another."""
    tensor = tensor.detach().cpu()
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
