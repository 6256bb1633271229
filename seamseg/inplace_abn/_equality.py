"""Comparison of two networks on one input: outputs, gradients, running statistics."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

_ROUNDINGS = 200
"""Spacings of the numbers of a weight, relative to its size, that a result may differ by."""


def check_equal(owner: str, expected: nn.Module, made: nn.Module, example: Any) -> None:
    """Raise ValueError, with `owner`, unless two networks have the same results, in training and evaluation mode.

    Both are computed in float64 by copies, with the same random numbers; names are taken from `expected`. Results may
    differ by the rounding of the parameters in their own type. Of gradients of parameters and of buffers
    the absolute values are compared: a conversion may change the sign of a channel of a convolution together with that
    of the norm after it.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    dtype = next((p.dtype for p in expected.parameters()), torch.float32)
    allowed = _ROUNDINGS * torch.finfo(dtype).eps
    for training in (True, False):
        results = [_results(network, inputs, training, expected) for network in (expected, made)]
        if results[0].keys() != results[1].keys():
            missing = sorted(results[0].keys() ^ results[1].keys())
            raise ValueError(f"{owner}: only one of both networks has {', '.join(missing[:4])}")
        for name, value in results[0].items():
            other, gap = results[1][name].double(), 0.0
            if other.shape != value.shape:
                gap = float("inf")
            elif value.numel():
                scale = value.double().abs().max().clamp(min=1e-6)
                gap = float((other - value.double()).abs().max() / scale)
            if not gap <= allowed:
                mode = "training" if training else "evaluation"
                raise ValueError(f"{owner}: in {mode} mode {name} differs by {gap:.1e} of its largest value")


def _results(network: nn.Module, inputs: tuple[Any, ...], training: bool, names: nn.Module) -> dict[str, Tensor]:
    """Return outputs, gradients and buffers by name: of parameters and buffers that in the network `names`."""

    def double(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.detach().to(torch.float64, copy=True).requires_grad_() if floating else leaf

    network = copy.deepcopy(network).double().train(training).requires_grad_()
    given, loss = tree_map(double, inputs), torch.zeros((), dtype=torch.float64)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        outputs = [leaf for leaf in tree_leaves(network(*given)) if isinstance(leaf, Tensor)]
        found = {f"output {i}": output.detach().clone() for i, output in enumerate(outputs)}
        for output in outputs:
            if output.is_floating_point() and output.requires_grad:
                # depends on each value in its own way
                generator = torch.Generator().manual_seed(output.numel())
                weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
                loss = loss.to(output.device) + (output * weight.to(output)).sum()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
    for (name, _), parameter in zip(names.named_parameters(), network.parameters(), strict=True):
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.abs()
    for i, leaf in enumerate(tree_leaves(given)):
        if isinstance(leaf, Tensor) and leaf.grad is not None:
            found[f"gradient of input {i}"] = leaf.grad
    buffers = zip(names.named_buffers(), network.buffers(), strict=True)
    return {**found, **{name: buffer.abs() for (name, _), buffer in buffers}}
