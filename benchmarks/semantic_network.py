"""Compare a semantic network as `predict` runs it with the same network written plainly.

    python benchmarks/semantic_network.py
    python benchmarks/semantic_network.py bf16 --size 512 --rounds 3

Plain: NCHW, batch norm and activation as layers of their own, the pooling and the argmax of torch at full resolution.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import Case, options, report
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config import load_config
from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.models.heads.deeplab import DeeplabV3
from seamseg.models.semantic import SemanticNet
from seamseg.ops.norm import ABN
from seamseg.structures import PackedSequence

EXPERIMENT, CLASSES, ASPECT = "vistas_wrn38", 65, 4 / 3


def network() -> SemanticNet:
    """Build the network of the experiment with random weights, whose activations stay in range."""
    torch.manual_seed(0)
    net = build_network(load_config(EXPERIMENT, overrides=["general.channels_last=no"]), CLASSES, 0)
    assert isinstance(net, SemanticNet)
    return net.eval().requires_grad_(False)


def plain_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Batch norm, then the activation."""
    assert isinstance(norm, ABN) and norm.weight is not None
    scale = norm.weight.abs() + norm.eps
    y = functional.batch_norm(x, norm.running_mean, norm.running_var, scale, norm.bias, False, 0.0, norm.eps)
    return functional.leaky_relu(y, norm.activation_param)


def plain_block(block: PreActivationBlock, x: Tensor) -> Tensor:
    """A residual block, layer by layer."""
    y = plain_norm(block.bn1, x)
    shortcut = block.proj_conv(y) if block.has_projection else x
    for layer in block.convs:
        y = plain_norm(layer, y) if isinstance(layer, ABN) else layer(y)
    return y + shortcut


def plain_body(module: nn.Module, x: Tensor) -> Tensor:
    """A stage, block by block."""
    if isinstance(module, PreActivationBlock):
        return plain_block(module, x)
    if isinstance(module, ABN):
        return plain_norm(module, x)
    if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
        y: Tensor = module(x)
        return y
    for child in module.children():
        x = plain_body(child, x)
    return x


def plain_head(head: DeeplabV3, x: Tensor) -> Tensor:
    """The head as the original computes it."""
    local = head.red_conv(plain_norm(head.map_bn, torch.cat([conv(x) for conv in head.map_convs], 1)))
    assert head.pooling_size is not None
    h, w = (min(window, side) for window, side in zip(head.pooling_size, x.shape[2:]))
    pooled = functional.avg_pool2d(x, (h, w), stride=1)
    top, left = (h - 1) // 2, (w - 1) // 2
    pooled = functional.pad(pooled, (left, w - 1 - left, top, h - 1 - top), mode="replicate")
    context = head.pool_red_conv(plain_norm(head.global_pooling_bn, head.global_pooling_conv(pooled)))
    return plain_norm(head.red_bn, local + context)


@torch.inference_mode()
def plain(net: SemanticNet, image: Tensor) -> Tensor:
    """Class map of an image."""
    logits = net.cls(plain_head(net.head, plain_body(net.body, image[None])))
    return functional.interpolate(logits, size=image.shape[1:], mode="bilinear", align_corners=False).argmax(1)[0]


def predicted(net: SemanticNet, image: Tensor) -> Tensor:
    """Class map of an image, as `predict` makes it."""
    with torch.inference_mode():
        classes = net.predict(PackedSequence([image]))[0].semantic
    assert classes is not None
    return classes


def case(precision: str, size: int, device: str) -> Case:
    """The network with a compute dtype; the difference is the part of the pixels of another class."""
    net = network()
    image = torch.randn(3, size, int(size * ASPECT), generator=torch.Generator().manual_seed(0)).to(device)
    image = functional.avg_pool2d(image, 5, 1, 2) * 3
    ours = for_inference(net, torch.device(device), precision)
    net.to(device)
    name = f"{EXPERIMENT} {size} x {int(size * ASPECT)} {precision}"
    return Case(name, "plain NCHW, fp32", lambda: predicted(ours, image), lambda: plain(net, image))


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Names, and what makes each case."""
    for precision in ("fp32", "bf16"):
        yield precision, partial(case, precision, arguments.size, arguments.device)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--size", type=int, default=512, help="shortest side in pixels (default: %(default)s)")
    arguments = parser.parse_args()
    report(cases(arguments), arguments)
