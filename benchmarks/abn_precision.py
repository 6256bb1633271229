"""Measure in-place ABN in bfloat16 with small scales: gradients against float64, and the losses of trainings.

    python benchmarks/abn_precision.py [gradients] [training] [--seeds N] [--steps N]

In-place ABN recomputes its normalised input from its rounded output. "rebuilt" does so for every scale; "norm alone"
and "with conv" are the layer called by itself and together with the preceding convolution.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.models.backbones.residual import ResidualBlock
from seamseg.ops import abn_channels
from seamseg.ops.activation import activate
from seamseg.ops.norm import ABN, InPlaceABN, NormSequential

SCALES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
SIDES = ("BatchNorm", "rebuilt", "norm alone", "with conv")
KINDS = 4
"""Patterns in the images; pairs of them are classes."""
ACTIVATIONS = (("leaky_relu", 0.01), ("elu", 1.0), ("identity", 1.0))


def rebuilding() -> AbstractContextManager[object]:
    """Take the output for exact, whatever the scale."""
    return mock.patch.object(abn_channels, "spacing_at_1", return_value=0.0)


def scale_of(norm: ABN) -> nn.Parameter:
    """Return the weight of an affine norm."""
    assert norm.weight is not None
    return norm.weight


def bias_of(norm: ABN) -> nn.Parameter:
    """Return the bias of an affine norm."""
    assert norm.bias is not None
    return norm.bias


class Layer:
    """A 1x1 convolution and a norm, whose offsets and residual are about 1 in size; the loss depends on `x_hat` too."""

    def __init__(self, scale: float, residual: bool, activation: tuple[str, float]) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        self.activation = activation
        self.input = functional.leaky_relu(random(4, 32, 32, 32), 0.01).bfloat16()
        self.convolution = nn.Conv2d(32, 64, 1, bias=False)
        self.norm = InPlaceABN(64, activation=activation[0], activation_param=activation[1])
        with torch.no_grad():
            self.convolution.weight.copy_((random(64, 32, 1, 1) / 32**0.5).bfloat16())
            scale_of(self.norm).fill_(scale)
            bias_of(self.norm).copy_(random(64))
        self.residual = random(4, 64, 32, 32).bfloat16() if residual else None
        self.noise = random(4, 64, 32, 32)

    def exact(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of the input and weight in float64, and set `dy`."""
        x = functional.conv2d(self.input.double(), self.convolution.weight.detach().double()).requires_grad_()
        weight = scale_of(self.norm).detach().double().requires_grad_()
        y = self._separate(x, weight)
        x_hat = functional.batch_norm(x.detach(), None, None, training=True)
        self.dy = (self.noise + 0.3 + 0.3 * x_hat).bfloat16()
        dx, dweight = torch.autograd.grad(y, (x, weight), self.dy.double())
        return dx, dweight

    def low(self, side: str) -> tuple[Tensor, ...]:
        """Return the same gradients in bfloat16."""
        deferred = None
        with torch.autocast("cpu", torch.bfloat16), rebuilding() if side == "rebuilt" else nullcontext():
            if side == "with conv":
                x, deferred = self.norm.convolve(self.convolution, self.input)
            else:
                x = self.convolution(self.input)
            if side == "BatchNorm":
                y = self._separate(x, scale_of(self.norm))
            elif self.residual is None:
                y = self.norm(x, deferred)
            else:
                y = self.norm.add(x, self.residual, *self.activation, deferred)
            return torch.autograd.grad(y, (x, scale_of(self.norm)), self.dy)

    def _separate(self, x: Tensor, weight: Tensor) -> Tensor:
        scale, bias = weight + self.norm.eps, bias_of(self.norm).detach().to(weight.dtype)
        z = functional.batch_norm(x, None, None, scale, bias, training=True)
        return activate(z if self.residual is None else z + self.residual.to(x.dtype), *self.activation)


def gradients() -> None:
    """Print how large the weight's gradient is, in units of the true one, and the relative errors of both gradients."""
    print("|dw| over the true |dw|, error of dw, error of dx\n")
    print(f"{'form':<24}{'scale':>7}" + "".join(f"  {side:^24}" for side in SIDES))
    for activation in ACTIVATIONS:
        for residual in (False, True):
            for scale in SCALES:
                layer = Layer(scale, residual, activation)
                dx, dw = layer.exact()
                line = f"{activation[0] + (' + residual' if residual else ''):<24}{scale:>7.0e}"
                for side in SIDES:
                    x, w = layer.low(side)
                    ratio, error = w.norm() / dw.norm(), (w - dw).norm() / dw.norm()
                    line += f"  {ratio:8.3f}{error:8.3f}{(x - dx).norm() / dx.norm():8.3f}"
                print(line, flush=True)


class Network(nn.Module):
    """Bottleneck blocks of 32 and 64 channels on images of 16x16, and a classifier."""

    def __init__(self, norm: Callable[..., nn.Module], blocks: int, classes: int) -> None:
        super().__init__()
        layers = [ResidualBlock(32, (16, 16, 32), norm) for _ in range(blocks // 2)]
        layers += [ResidualBlock(32 if i == 0 else 64, (16, 16, 64), norm, 2 - (i > 0)) for i in range(blocks // 2)]
        self.stem = NormSequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), norm(32))
        self.blocks = nn.Sequential(*layers)
        self.classifier = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of `N x 3 x 16 x 16`."""
        return self.classifier(self.blocks(self.stem(images)).mean((2, 3)))

    def small_scales(self) -> Iterator[tuple[ABN, int]]:
        """Return the norms, and the number of their first channels with small scales."""
        for layer in self.modules():
            if isinstance(layer, ABN):
                yield layer, layer.num_features // 2

    def small_weights(self) -> Tensor:
        """Return the absolute values of all small scales."""
        return torch.cat([scale_of(layer).detach()[:channels].abs() for layer, channels in self.small_scales()])

    def start(self, kind: str) -> None:
        """Give scales their first values: `zero` at the end of every block, or some of each norm `small`."""
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, layer in self.named_modules():
                if kind == "zero" and name.endswith("bn3") and isinstance(layer, ABN):
                    scale_of(layer).zero_()
            for layer, channels in self.small_scales() if kind == "small" else ():
                scale_of(layer)[:channels] = 10 ** (-3 - 3 * torch.rand(channels, generator=generator))
                bias_of(layer).normal_(generator=generator)


def batch(generator: torch.Generator, templates: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Make images of noise with two patterns each, and the class of each pair."""
    kinds = len(templates)
    pairs = torch.randint(kinds, (count, 2), generator=generator)
    images = torch.randn(count, 3, 16, 16, generator=generator) * 0.7
    places = torch.randint(0, 12, (count, 2, 2), generator=generator).tolist()
    for image, pair, where in zip(images, pairs.tolist(), places):
        for kind, (top, left) in zip(pair, where):
            image[:, top : top + 5, left : left + 5] += templates[kind][:, : 16 - top, : 16 - left]
    low, high = pairs.amin(1), pairs.amax(1)
    return images, high * (high + 1) // 2 + low


def network(side: str, seed: int) -> Network:
    """Make a network with batch norm or in-place ABN, the same weights for both."""
    torch.manual_seed(seed)
    return Network(ABN if side.startswith("BatchNorm") else InPlaceABN, 4, KINDS * (KINDS + 1) // 2)


def train(net: Network, side: str, seed: int, steps: int, lr: float, small: bool = False) -> list[float]:
    """Train with a cosine schedule and return the losses; with `small`, small scales are frozen."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(seed)
    templates = torch.randn(KINDS, 3, 5, 5, generator=torch.Generator().manual_seed(99))
    losses = []
    with rebuilding() if side == "rebuilt" else nullcontext():
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            images, labels = batch(generator, templates, 32)
            with torch.autocast("cpu", torch.bfloat16, enabled=not side.endswith("fp32")):
                logits = net(images)
            loss = functional.cross_entropy(logits.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            for layer, channels in net.small_scales() if small else ():
                gradient = scale_of(layer).grad
                assert gradient is not None
                gradient[:channels] = -1e-4 * scale_of(layer).detach()[:channels]
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def training(seeds: int, steps: int) -> None:
    """Print losses."""
    sides = ("BatchNorm fp32", "BatchNorm", "in-place fp32", "rebuilt", "with conv")
    print(f"fine-tuning for {steps // 4} steps: mean loss of the first and of the second half, and how far the small")
    print(f"scales end from where float32 takes them, over its way there; each of {seeds} seeds")
    pretrained, exact = [], {}
    for seed in range(seeds):
        net = network("BatchNorm", seed)
        net.start("small")
        train(net, "BatchNorm fp32", seed, steps, 0.05, small=True)
        pretrained.append(net.state_dict())
    for side in sides:
        line = f"{side:<16}"
        for seed, state in enumerate(pretrained):
            net = network(side, seed)
            net.load_state_dict(state)
            before = net.small_weights()
            losses = train(net, side, seed + 1000, steps // 4, 0.01)
            if side.endswith("fp32"):
                # a scale of in-place ABN is an absolute value, which does not pass 0: it has a float32 of its own
                exact[seed] = before, net.small_weights()
            error = (net.small_weights() - exact[seed][1]).norm() / (exact[seed][1] - exact[seed][0]).norm()
            line += "  " + "".join(f"{statistics.mean(half):7.3f}" for half in halves(losses)) + f"{error:8.2f}"
        print(line, flush=True)
    for kind in ("small", "zero"):
        print(f"from a start with {kind} scales, {steps} steps, mean loss of the first and of the second half")
        for side in sides:
            line = f"{side:<16}"
            for seed in range(seeds):
                net = network(side, seed)
                net.start(kind)
                losses = train(net, side, seed, steps, 0.05 if kind == "small" else 0.2)
                line += "  " + "".join(f"{statistics.mean(half):7.3f}" for half in halves(losses))
            print(line, flush=True)


def halves(losses: list[float]) -> tuple[list[float], list[float]]:
    """Split into the first and the second half."""
    return losses[: len(losses) // 2], losses[len(losses) // 2 :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="gradients, training (default: both)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=240, help="steps of each training (default: %(default)s)")
    options = parser.parse_args()
    if "gradients" in options.parts or not options.parts:
        gradients()
    if "training" in options.parts or not options.parts:
        training(options.seeds, options.steps)
