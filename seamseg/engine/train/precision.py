"""Which numbers the network computes with while it trains."""

from __future__ import annotations

import torch


def bf16_is_fast(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 numbers itself; where it does not, they cost several times float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # private names, so that a release without them means no
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type == "cpu" and any(getattr(torch.cpu, name, bool)() for name in checks)


def number_type(precision: str, device: torch.device) -> torch.dtype:
    """What `[general] precision` makes the network compute with on a device."""
    if precision == "auto":
        precision = "bf16" if bf16_is_fast(device) else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass for `[general] precision`: fp32, bf16, fp16, or auto (bf16 where it is fast).

    Weights, statistics and losses stay float32 in any case.
    """
    number = number_type(precision, device)
    mixed = number is not torch.float32
    return torch.autocast(device.type, dtype=number if mixed else torch.bfloat16, enabled=mixed)


def loss_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """What keeps the small gradients of fp16 from becoming 0; None where the numbers have the range of float32."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None
