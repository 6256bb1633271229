"""Check what custom bodies and heads return, once, on zeros, when a network is built: one line that names the part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.config import Config
from seamseg.config.components import Component
from seamseg.models.backbones.base import Body
from seamseg.models.heads.custom import HeadContext
from seamseg.utils.component_errors import described, instance_of
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError

_IMAGE = (192, 256)


def check_body(backbone: object, config: Config, component: Component) -> None:
    """Raise InputError if a body is none, or its maps are others than it declares."""
    where = f"{component.section} ({component.file})"
    backbone = instance_of(Body, backbone, where)
    if config.body.body_params:
        raise InputError(f"[body] body_params has no effect on {component.name}: set keys of [{component.section}]")
    if config.general.checkpoint_body:
        raise InputError(f"[general] checkpoint_body: {component.name} does not support it")
    strides, channels = dict(backbone.strides), backbone.out_channels
    if list(strides.values()) != sorted(strides.values()):
        raise InputError(f"{where}: strides must be in the order of the maps, finest first, got {strides}")
    if channels.keys() != strides.keys():
        raise InputError(f"{where}: out_channels names {[*channels]}, strides names {[*strides]}")
    largest = max(64, *strides.values())
    # images have any size: the sides are a multiple of the strides, less, and more
    for height, width in ((3 * largest, 4 * largest), (3 * largest - 1, 4 * largest + 1)):
        with _trial(backbone, component) as device:
            found = backbone(torch.zeros(1, 3, height, width, device=device))
            if not isinstance(found, dict):
                raise TypeError(f"forward() must return a dict of maps, returned {type(found).__name__}")
            shapes = {name: tuple(found[name].shape) for name in strides}
        for name, stride in strides.items():
            shape = (1, channels[name], -(-height // stride), -(-width // stride))
            if shapes[name] != shape:
                raise InputError(
                    f"{where}: {name} of an image of 3 x {height} x {width} is {_text(shapes[name][1:])}, its channels "
                    f"and stride, rounded up, declare {_text(shape[1:])}"
                )


def check_part(kind: str, part: Any, context: HeadContext, component: Component) -> None:
    """Raise InputError if a custom `rpn_head`, `roi_head` or `semantic_head` returns other shapes.

    Parameters
    ----------
    kind : kind of the component
    part : the built one
    context : what it was built for
    component : component of the part, for the message
    """
    (height, width), things = _IMAGE, context.num_thing
    with _trial(part, component) as device:
        sizes = [(-(-height // stride), -(-width // stride)) for stride in context.strides]
        levels = [torch.zeros(2, context.width, *size, device=device) for size in sizes]
        if kind == "semantic_head":
            _expect("the logits", part(levels), (2, context.num_stuff + things, None, None))
        elif kind == "rpn_head":
            options = context.config.rpn
            used = slice(options.fpn_min_level, options.fpn_min_level + options.fpn_levels)
            objectness, codes, shapes = part(levels[used])
            if len(shapes) != len(levels[used]):
                raise ValueError(f"the sizes of {len(shapes)} levels are returned, there are {len(levels[used])}")
            anchors = sum(h * w for h, w in shapes) * len(options.anchor_ratios)
            _expect("the objectness", objectness, (2, anchors))
            _expect("the box codes", codes, (2, anchors, 4))
        else:
            rows, cols = size = context.config.roi.roi_size
            for count in (3, 0):
                x = torch.zeros(count, context.width, *size, device=device)
                logits, codes = part.boxes(x)
                _expect("the class logits of boxes()", logits, (count, things + 1))
                _expect("the box codes of boxes()", codes, (count, things, 4))
                if part.with_masks:
                    _expect("masks()", part.masks(x), (count, things, 2 * rows, 2 * cols))


@contextmanager
def _trial(part: nn.Module, component: Component) -> Iterator[torch.device]:
    """Run a part in evaluation mode, without gradients and without a trace in the random numbers; yield its device."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            part.eval()
            yield next((p.device for p in part.parameters()), torch.device("cpu"))
    except Exception as error:
        if isinstance(error, SeamsegError) or lacks_memory(error):
            raise
        raise InputError(f"{component.section}{described(error, str(component.file))}") from error
    finally:
        part.train()


def _expect(what: str, found: object, shape: Sequence[int | None]) -> None:
    if not isinstance(found, Tensor):
        raise TypeError(f"{what} must be a tensor, not {type(found).__name__}")
    if found.ndim != len(shape) or any(want not in (None, have) for have, want in zip(found.shape, shape)):
        names = iter("hw")
        expected = " x ".join(next(names) if side is None else str(side) for side in shape)
        raise ValueError(f"{what} must be {expected}, is {_text(found.shape)}")


def _text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
