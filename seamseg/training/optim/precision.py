"""Which numbers the network computes with while it trains."""

from __future__ import annotations

import torch

from seamseg.ops.fused import bf16_is_fast


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
