"""Random arguments for any operator, from its schema: by name (`boxes`, `logits`, ...), else by type.

Values that depend on each other are put right for single operators in `_FITTED`.
"""

import math
import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from seamseg.ops.reference.winograd import tile_count
from support.cuda_emulation.worker import tensors_of

FLOATING = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-5, 1e-6),
    torch.bfloat16: (1e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}
"""rtol and atol between two implementations of an operator, by the dtype of a result."""
WILD_VALUES = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e9, -1e9, 3e38, 1e-40, 2.0**31, -(2.0**63))


def check_equal(name: str, found: Any, wanted: Any) -> None:
    """Raise AssertionError where the results of two implementations of an operator differ by more than rounding."""
    for x, y in zip(tensors_of(found), tensors_of(wanted), strict=True):
        x = x.to(y.device)
        if name == "upsample_ohem_loss" and x.shape == y.shape:
            both = x.isfinite() & y.isfinite()  # the selection among equal losses is unspecified
            x, y = x[both], y[both]
        if name == "upsample_argmax" and x.shape == y.shape and x.numel():
            # logits of few bits have ties
            assert (x != y).sum() <= max(3, 0.05 * x.numel()), f"{int((x != y).sum())} of {x.numel()} pixels differ"
            continue
        rtol, atol = TOLERANCES.get(y.dtype, (0, 0))
        # sums of many terms cancel each other
        largest = float(y.abs().nan_to_num(0, 0, 0).max()) if y.is_floating_point() and y.numel() else 1.0
        assert_close(x, y, rtol=rtol, atol=atol * max(largest, 1.0), equal_nan=True)


class Scene:
    """The sizes that the arguments of one call share, and the dice they are drawn with."""

    def __init__(self, seed: int, odd_values: bool = False) -> None:
        self.dice = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.odd_values = odd_values
        self.batch = self.size(3)
        self.channels = self.size(self.one_of(5, 5, 40))
        self.height, self.width = self.size(self.one_of(9, 40)), self.size(self.one_of(9, 40, 150))
        self.count, self.count_b = self.size(self.one_of(6, 80, 300)), self.size(self.one_of(6, 80))
        self.cells = (self.size(9), self.size(9))
        self.levels = self.dice.randint(1, 4)
        self.dtype = self.one_of(*FLOATING)

    def one_of(self, *values: Any) -> Any:
        return self.dice.choice(values)

    def size(self, most: int) -> int:
        return self.dice.choice((0, 1, 1, 2, most)) if self.dice.random() < 0.3 else self.dice.randint(1, most)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        x = torch.randn(shape, generator=self.generator) * 2
        if self.dice.random() < 0.2:
            x = x.round()  # ties
        return self.salted(x).to(dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        x = torch.randint(low, max(high, low + 1), shape, generator=self.generator)
        if len(shape) > 1 and shape[-1] > 0 and self.dice.random() < 0.5:
            x = x[..., torch.arange(shape[-1]) // 8 * 8]
        return x.to(dtype)

    def map(self, channels: int | None = None, height: int | None = None, width: int | None = None) -> Tensor:
        """`N x C x H x W` in one of the layouts that tensors have in life."""
        channels = self.channels if channels is None else channels
        shape = (self.height if height is None else height, self.width if width is None else width)
        layout = self.one_of("dense", "dense", "channels last", "cut", "expanded")
        if layout == "channels last":
            return self.normal(self.batch, channels, *shape).contiguous(memory_format=torch.channels_last)
        if layout == "cut":
            return self.normal(self.batch, channels + 1, shape[0], shape[1] * 2 + 1)[:, 1:, :, 1::2]
        if layout == "expanded":
            return self.normal(1, channels, *shape).expand(self.batch, -1, -1, -1)
        return self.normal(self.batch, channels, *shape)

    def boxes(self, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Around the map, seldom empty, inverted or far away; many of them share corners."""
        corner = torch.rand(count, 2, generator=self.generator) * self.one_of(8, 40, 200) - 4
        size = torch.rand(count, 2, generator=self.generator) * self.one_of(3, 30, 200)
        boxes = torch.cat((corner, corner + size), 1)
        if self.dice.random() < 0.3:
            boxes = boxes.round()
        if self.dice.random() < 0.2 and count:
            boxes[self.dice.randrange(count)] = torch.tensor(
                self.one_of((5, 5, 5, 5), (9, 9, 2, 2), (-50, 3, -20, 9.0))
            )
        return self.salted(boxes).to(dtype or self.one_of(torch.float32, self.dtype))

    def salted(self, x: Tensor) -> Tensor:
        if self.odd_values and x.numel() and self.dice.random() < 0.3:
            for _ in range(self.dice.randint(1, 4)):
                x.view(-1)[self.dice.randrange(x.numel())] = self.one_of(*WILD_VALUES)
        return x

    def fraction(self) -> float:
        return self.one_of(0.0, 0.25, 0.5, 0.75, 1.0, self.dice.random())


_NAMED: dict[str, Callable[[Scene], Any]] = {
    "x": Scene.map,
    "y": Scene.map,
    "dy": Scene.map,
    "boxes": lambda s: s.boxes(s.count),
    "a": lambda s: s.boxes(s.count),
    "b": lambda s: s.boxes(s.count_b),
    "scores": lambda s: s.normal(s.count, dtype=s.one_of(torch.float32, s.dtype)),
    "groups": lambda s: s.integers(0, 4, s.count),
    "index": lambda s: s.integers(0, s.batch, s.count),
    "level": lambda s: s.integers(0, s.levels, s.count),
    "levels": lambda s: [s.map(height=max(1, s.height >> i), width=max(1, s.width >> i)) for i in range(s.levels)],
    "id_map": lambda s: s.integers(0, s.one_of(2, 9), s.height, s.width, dtype=s.one_of(*INTEGERS)),
    "labels": lambda s: s.integers(0, 12, s.height, s.width, dtype=s.one_of(*INTEGERS)),
    "ids": lambda s: s.integers(0, 100, s.size(14)),
    "crowd_mask": lambda s: s.integers(0, 2, s.height, s.width, dtype=s.one_of(torch.bool, *INTEGERS)),
    "logits": lambda s: s.normal(s.channels, *s.cells),
    "residual": Scene.map,
    "n": lambda s: s.size(14),
    "n_max": lambda s: s.one_of(-1, 0, 1, 5, 100),
    "height": lambda s: s.dice.randint(1, s.one_of(4, 20)),
    "width": lambda s: s.dice.randint(1, s.one_of(4, 20)),
    "first_id": lambda s: s.dice.randint(0, 3),
    "activation": lambda s: s.dice.randint(0, 1),
    "parameter": lambda s: s.one_of(0.01, 0.5, 1.0),
    "padded_size": lambda s: [s.height * 4 + 4, s.width * 4 + 4],
    "target": lambda s: s.integers(0, max(s.channels, 1), s.height * 4 + 1, s.width * 4 + 4),
    "ohem": lambda s: s.one_of(0.01, 0.25, 1.0),
    "batches": lambda s: torch.tensor(s.dice.randint(0, 9)),
    "total": lambda s: torch.tensor(float(s.dice.randint(1, 99)), dtype=torch.float64),
    "momentum": lambda s: s.one_of(0.1, 0.7),
    "eps": lambda s: 1e-5,
    "count": lambda s: s.one_of(0, 1, 2, 1000),
    "local_total": lambda s: s.one_of(1.0, 1000.0),
    "spacing": lambda s: s.one_of(2.0**-23, 2.0**-7),
}
_CHANNEL_VALUES = ("mean", "var", "scale", "bias", "offset", "slope", "weight", "running_mean", "running_var")
_CHANNEL_VALUES += ("sum", "moment", "squares", "invstd")


def _plausible_value(scene: Scene, name: str, kind: str) -> Any:
    if kind.startswith("Optional[") and scene.dice.random() < 0.4:
        return None
    if name in _NAMED:
        return _NAMED[name](scene)
    if name in _CHANNEL_VALUES:
        wide = torch.float64 if scene.dtype == torch.float64 else torch.float32
        return scene.normal(scene.channels, dtype=wide)
    by_type: dict[str, Callable[[], Any]] = {
        "Tensor": scene.map,
        "List[Tensor]": lambda: [scene.map() for _ in range(scene.dice.randint(1, 3))],
        "int": lambda: scene.dice.randint(1, 9),
        "float": scene.fraction,
        "bool": lambda: scene.dice.random() < 0.5,
        "List[int]": lambda: [scene.dice.randint(1, 9) for _ in range(2)],
        "List[bool]": lambda: [scene.dice.random() < 0.5 for _ in range(2)],
    }
    return by_type[re.sub(r"^Optional\[(.*)\]$", r"\1", kind).replace("SymInt", "int")]()


# What follows from other arguments of the same call: a function that puts the values right.

_Values = dict[str, Any]


def _fit_abn(scene: Scene, v: _Values) -> None:
    if "y" in v and v["activation"] == 1:
        low = v["parameter"] * (v["y"].double().clamp(-3, 0).exp() - 1)
        v["y"] = torch.where(v["y"] > 0, v["y"], low.to(v["y"].dtype))
    like = v["x"] if "x" in v else v["y"]
    for name in ("dy", "residual"):
        if v.get(name) is not None:
            v[name] = scene.normal(*like.shape)
            if scene.dice.random() < 0.8:
                v[name] = torch.empty_like(like).copy_(v[name])


def _fit_abn_channels(scene: Scene, v: _Values) -> None:
    for name in ("var", "running_var", "squares", "invstd"):
        if v.get(name) is not None:
            v[name] = v[name].abs()
    wide = torch.float64 if scene.dtype == torch.float64 else torch.float32
    if v.get("joint") is not None:
        v["joint"] = scene.normal(4, scene.channels, dtype=wide).abs()
    if "kernel" in v:
        kernel = scene.normal(scene.channels, scene.size(9), *scene.one_of((1, 1), (3, 3)))
        layout = scene.one_of(torch.contiguous_format, torch.channels_last)
        v["kernel"] = kernel.contiguous(memory_format=layout)
        v["dkernel"] = torch.empty_like(v["kernel"]).copy_(scene.normal(*kernel.shape))
        v["dweight"] = scene.normal(2, scene.channels, dtype=wide)
        v["dweight"][1, ::2] = 0


def _fit_roi(scene: Scene, v: _Values) -> None:
    v["boxes"] = v["boxes"].to(torch.float64 if v["boxes"].dtype == torch.float64 else torch.float32)
    first = v["levels"][0].shape[0] if "levels" in v else scene.batch
    if first == 0 or scene.count == 0:
        v["boxes"], v["index"] = v["boxes"][:0], v["index"][:0]
        v["level"] = None if v["level"] is None else v["level"][:0]
    if "levels" in v and v["level"] is None:
        v["levels"] = v["levels"][:1]
        v["padded_size"] = scene.one_of([0, 0], v["padded_size"])


def _fit_roi_backward(scene: Scene, v: _Values) -> None:
    _fit_roi(scene, v)
    levels = scene.levels if v["level"] is not None else 1
    sides = [(scene.batch, scene.channels, max(1, scene.height >> i), max(1, scene.width >> i)) for i in range(levels)]
    v["shapes"] = [side for shape in sides for side in shape]
    v["channels_last"] = [scene.dice.random() < 0.5 for _ in range(levels)]
    dy = scene.normal(v["boxes"].shape[0], scene.channels, scene.dice.randint(1, 8), scene.dice.randint(1, 8))
    v["dy"] = dy.contiguous(memory_format=torch.channels_last) if scene.dice.random() < 0.5 else dy
    v["padded_size"] = v["padded_size"] if v["level"] is not None else scene.one_of([0, 0], v["padded_size"])


def _fit_upsample(scene: Scene, v: _Values) -> None:
    v["logits"] = scene.normal(max(1, scene.channels), max(1, scene.cells[0]), max(1, scene.cells[1]))
    if scene.dice.random() < 0.5:
        v["logits"] = v["logits"].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    v["padded_height"], v["padded_width"] = (scene.dice.randint(1, scene.one_of(9, 70)) for _ in range(2))
    height, width = scene.dice.randint(1, v["padded_height"]), scene.dice.randint(1, v["padded_width"])
    if "target" in v:
        v["target"] = scene.integers(0, v["logits"].shape[0], height, width)
        v["target"][torch.rand(height, width, generator=scene.generator) < scene.one_of(0, 0.2, 1)] = 255
        v["ohem"] = scene.one_of(0.01, 0.25, 1.0, max(scene.dice.random(), 1e-3))
    else:
        v["height"], v["width"] = height, width


def _fit_upsample_backward(scene: Scene, v: _Values) -> None:
    _fit_upsample(scene, v)
    wide = torch.float64 if v["logits"].dtype == torch.float64 else torch.float32
    arguments = [v[name] for name in ("logits", "padded_height", "padded_width", "target", "ohem")]
    v["normaliser"] = torch.ops.seamseg.upsample_ohem_loss(*arguments)[1]
    v["grad"] = torch.tensor(scene.one_of(1.0, -0.3, 0.0), dtype=wide)


def _fit_paste(scene: Scene, v: _Values) -> None:
    v["masks"] = scene.normal(min(scene.count, 8), max(1, scene.cells[0]), max(1, scene.cells[1])).float().sigmoid()
    v["boxes"] = v["boxes"].float()[: v["masks"].shape[0]]


def _fit_map_of_labels(scene: Scene, v: _Values) -> None:
    if v["id_map"] is not None:
        v["id_map"] = scene.integers(0, 3, *v["labels"].shape, dtype=scene.one_of(*INTEGERS))


def _fit_boxes(scene: Scene, v: _Values) -> None:
    v["b"] = v["b"].to(v["a"].dtype)


def _fit_pooling(scene: Scene, v: _Values) -> None:
    name = "x" if "x" in v else "dy"
    if 0 in v[name].shape[2:]:
        v[name] = scene.normal(scene.batch, scene.channels, 3, 5)


def _fit_winograd(scene: Scene, v: _Values) -> None:
    shape = (scene.batch, max(1, scene.height), max(1, scene.width), 16 * scene.dice.randint(0, 3))
    dilation = scene.dice.randint(1, 3)
    last = tile_count(shape[1], dilation) - 1
    v["dilation"], v["first"] = dilation, scene.dice.randint(0, last)
    v["rows"] = scene.dice.randint(1, last - v["first"] + 1)
    if "out" not in v:
        v["x" if "x" in v else "dy"] = scene.normal(*shape, dtype=torch.float32)
        return
    tiles = shape[0] * dilation**2 * v["rows"] * tile_count(shape[2], dilation)
    v["products"] = [scene.normal(tiles, shape[3], dtype=torch.float32) for _ in range(36)]
    v["bias"], v["out"] = scene.normal(shape[3], dtype=torch.float32), torch.zeros(shape)
    v["residual"] = scene.normal(*shape, dtype=torch.float32) if v["residual"] is not None else None
    v["slope"] = scene.one_of(0.01, 1.0, 0.0)


_FITTED: dict[str, Callable[[Scene, _Values], None]] = {
    "abn_backward_channels": _fit_abn_channels,
    "abn_forward_channels": _fit_abn_channels,
    "abn_scale_gradient": _fit_abn_channels,
    "abn_transform": _fit_abn,
    "abn_backward_reduce": _fit_abn,
    "abn_backward_input": _fit_abn,
    "box_filter_pool": _fit_pooling,
    "box_filter_pool_backward": _fit_pooling,
    "box_iou": _fit_boxes,
    "count_labels": _fit_map_of_labels,
    "fill_free": _fit_map_of_labels,
    "match_boxes": _fit_boxes,
    "paste_masks_into": _fit_paste,
    "roi_sampling": _fit_roi,
    "roi_sampling_backward": _fit_roi_backward,
    "upsample_argmax": _fit_upsample,
    "upsample_ohem_loss": _fit_upsample,
    "upsample_ohem_loss_backward": _fit_upsample_backward,
    "winograd_gradient": _fit_winograd,
    "winograd_input": _fit_winograd,
    "winograd_output": _fit_winograd,
}


def plausible(name: str, seed: int, odd_values: bool = False, zero_rows: bool = False) -> list[Any]:
    """Arguments of `torch.ops.seamseg.<name>` that fit each other; with odd values, NaN and such among the numbers.

    With `zero_rows` there are no boxes, and no images in maps that boxes are not looked up on.
    """
    scene = Scene(seed, odd_values)
    types = {a.name: str(a.type) for a in getattr(torch.ops.seamseg, name).default._schema.arguments}
    if zero_rows:
        scene.count, scene.channels = 0, max(scene.channels, 1)
        scene.batch = max(scene.batch, 1) if "boxes" in types else 0
    values = {argument: _plausible_value(scene, argument, kind) for argument, kind in types.items()}
    if name in _FITTED:
        _FITTED[name](scene, values)
    return list(values.values())
