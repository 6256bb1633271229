"""Compare in-place ABN with BatchNorm + LeakyReLU: a training step of a layer and of a ResNet-50 body.

    python benchmarks/abn.py [--threads N] [NAME ...]

The LeakyReLU of the peer works in place. The `inplace-abn` package, if installed, is a second peer for the body. Small
steps are compared with the arithmetic per channel as plain operators of torch, 45 a norm instead of 3, too.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from timing import Case, options, report
from torch import Tensor, nn

from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops import abn_channels, abn_kernel_gradient
from seamseg.ops.norm import InPlaceABN
from seamseg.ops.reference import abn as plain

LAYERS = [(1, 64, 256, 512), (1, 256, 128, 256), (1, 512, 64, 128), (1, 2048, 16, 32), (128, 256, 14, 14)]


class BatchNormLeakyReLU(nn.Sequential):
    """The peer, with the interface of the norms of residual blocks."""

    def __init__(self, channels: int, activation: str = "leaky_relu", activation_param: float = 0.01) -> None:
        layers: list[nn.Module] = [nn.BatchNorm2d(channels)]
        if activation == "leaky_relu":
            layers.append(nn.LeakyReLU(activation_param, inplace=True))
        super().__init__(*layers)
        self.activation, self.activation_param = activation, activation_param


def step_of_layer(shape: tuple[int, ...], last: bool, dtype: torch.dtype) -> Case:
    """Compare the forward and backward pass of one layer."""
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(shape).to(dtype).contiguous(memory_format=layout).requires_grad_()
    dy = torch.randn_like(x)

    def step(layer: nn.Module) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(layer(x), x, dy)[0]

    size = "x".join(map(str, shape))
    name = f"layer {size} {'NHWC' if last else 'NCHW'} {str(dtype).removeprefix('torch.')}"
    return Case(name, "BatchNorm + LeakyReLU_", step(InPlaceABN(shape[1])), step(BatchNormLeakyReLU(shape[1])))


def step_of_body(size: tuple[int, int], last: bool, peer: str) -> Case:
    """Compare the forward and backward pass of a ResNet-50 body, keeping the gradients of parameters."""
    layout = torch.channels_last if last else torch.contiguous_format
    images = torch.randn(1, 3, *size).contiguous(memory_format=layout)

    def step(norm: Callable[..., nn.Module]) -> Callable[[], None]:
        torch.manual_seed(0)
        body = ResNet(RESNETS["resnet50"], norm).to(memory_format=layout)

        def run() -> None:
            maps = body(images)
            torch.autograd.backward([maps[f"mod{i}"].mean() for i in range(2, 6)])

        return run

    name = f"ResNet-50 body {size[0]}x{size[1]} {'NHWC' if last else 'NCHW'}"
    norms = {"BatchNorm + LeakyReLU_": BatchNormLeakyReLU, **upstream()}
    return Case(name, peer, step(InPlaceABN), step(norms[peer]))


def small_step(name: str, size: tuple[int, int]) -> Case:
    """Compare the forward and backward pass of a small body with and without the operators per channel."""
    torch.manual_seed(0)
    body = ResNet(RESNETS[name], InPlaceABN).to(memory_format=torch.channels_last)
    images = torch.randn(1, 3, *size).contiguous(memory_format=torch.channels_last)

    def run() -> None:
        maps = body(images)
        torch.autograd.backward([maps[f"mod{i}"].mean() for i in range(2, 6)])

    def run_plain() -> None:
        names = ("abn_forward_channels", "abn_backward_channels")
        with (
            mock.patch.multiple(abn_channels, **{name: getattr(plain, name) for name in names}),
            mock.patch.object(abn_kernel_gradient, "abn_scale_gradient", plain.abn_scale_gradient),
        ):
            run()

    return Case(f"{name} body {size[0]}x{size[1]}", "plain torch per channel", run, run_plain)


def upstream() -> dict[str, Callable[..., nn.Module]]:
    """Return the layer of the `inplace-abn` package, None if it is not installed."""
    if importlib.util.find_spec("inplace_abn") is None:
        return {}
    return {"inplace-abn package": importlib.import_module("inplace_abn").InPlaceABN}


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    for shape in LAYERS:
        for last in (True, False):
            for dtype in (torch.float32, torch.bfloat16):
                yield f"layer {'NHWC' if last else 'NCHW'} {dtype}", partial(step_of_layer, shape, last, dtype)
    for last in (True, False):
        for peer in ("BatchNorm + LeakyReLU_", *upstream()):
            name = f"body {'NHWC' if last else 'NCHW'} {peer}"
            yield name, partial(step_of_body, (256, 512), last, peer)
    for name in ("resnet18", "resnet50"):
        yield f"small {name}", partial(small_step, name, (64, 128))


def main() -> None:
    """Time the cases in turns and print a table."""
    arguments = options(__doc__).parse_args()
    if not upstream():
        print("inplace-abn is left out: the package is not installed")
    report(cases(), arguments)


if __name__ == "__main__":
    main()
