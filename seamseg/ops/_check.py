"""Argument checks shared by the ops: one line that says which argument of which op is wrong, and how."""

from __future__ import annotations

from torch import Tensor


def check_boxes(op: str, name: str, boxes: Tensor, dims: int | None = 2) -> None:
    """Require a floating tensor of boxes or codes, `... x 4`, with `dims` dimensions (any number if None).

    Raises
    ------
    TypeError
        if it is no floating tensor
    ValueError
        if its shape is wrong
    """
    if not isinstance(boxes, Tensor) or not boxes.is_floating_point():
        raise TypeError(f"{op}: {name} must be a floating point tensor, got {describe(boxes)}")
    if boxes.dim() == 0 or boxes.shape[-1] != 4 or (dims is not None and boxes.dim() != dims):
        wanted = "N x 4" if dims == 2 else "... x 4"
        raise ValueError(f"{op}: {name} must be {wanted}, got {describe(boxes)}")


def check_same_device(op: str, **tensors: Tensor) -> None:
    """Require that all tensors live on one device.

    Raises
    ------
    ValueError
        if they do not
    """
    if len({t.device for t in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise ValueError(f"{op}: arguments must be on one device, got {places}")


def describe(value: object) -> str:
    """A short description of an argument for error messages, as `float32 tensor of shape 3x4`."""
    if isinstance(value, Tensor):
        shape = "x".join(map(str, value.shape)) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {shape}"
    return f"a {type(value).__name__}"
