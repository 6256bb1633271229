"""Nothing given to an operator can end the process: each call returns, or raises with words."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.cuda_emulation.worker import load_operators
from support.emulator import Fault, Raised, Worker, obstacle
from support.op_arguments import FLOATING, INTEGERS, WILD_VALUES, plausible
from torch import Tensor

from seamseg.ops import implementations

load_operators()
OPERATORS = sorted(implementations())
EXPECTED = {"RuntimeError", "ValueError", "TypeError", "IndexError", "NotImplementedError", "OverflowError"}
# the last is raised by Python where gradients are needed, for an object of a wrong type
EXPECTED |= {"MemoryError", "OutOfMemoryError", "AttributeError"}
MANY = 2000
DTYPES = (*FLOATING, *INTEGERS, torch.bool, torch.complex64)
LARGE = 100_003
"""A size that memory holds; the emulator takes minutes for it."""

WILD_INTS = (-1, 0, 1, 2, 3, 7, 255, 256, -(2**63), 2**63 - 1, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, LARGE)
WILD_FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.0, -1.0, 1e-45, 1e38, 1e300, -1e300)


def perturbed(arguments: list[Any], seed: int) -> list[Any]:
    """The same with up to four mistakes."""
    dice, arguments = random.Random(seed), list(arguments)
    for _ in range(dice.randint(0, 4) if arguments else 0):
        i = dice.randrange(len(arguments))
        arguments[i] = _mistaken(dice, arguments[i], arguments)
    return arguments


def _mistaken(dice: random.Random, value: Any, others: list[Any]) -> Any:
    if dice.random() < 0.04:
        return dice.choice((None, "nonsense", [], -1, 0.5, True, torch.tensor(3), [torch.zeros(2)], object))
    if isinstance(value, Tensor):
        tensors = [value, *(other for other in others if isinstance(other, Tensor))]
        return _mistaken_tensor(dice, value, dice.choice(tensors))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice((value + 1, value - 1, -value, value * 1000, *WILD_INTS))
    if isinstance(value, float):
        return dice.choice(WILD_FLOATS)
    if isinstance(value, list) and value:
        i = dice.randrange(len(value))
        return dice.choice((value + value[:1], value[:-1], [*value[:i], _mistaken(dice, value[i], others)]))
    return dice.choice((None, 1, torch.zeros(3)))


def _mistaken_tensor(dice: random.Random, x: Tensor, other: Tensor) -> Tensor:
    dim = dice.randrange(x.dim()) if x.dim() else 0
    choices: list[Callable[[], Tensor]] = [
        lambda: x.to(dice.choice(DTYPES)),
        lambda: other,
        lambda: x.detach().to("meta"),
        lambda: x[None],
        lambda: x.flatten(),
        lambda: x.unsqueeze(-1).expand(*x.shape, dice.choice((0, 1, 3))),
        lambda: torch.empty(dice.choice(((), (0,), (0, 4), (3, 0), (1, 1, 1, 1), (0, 0, 0, 0))), dtype=x.dtype),
    ]
    if x.is_floating_point():
        choices.append(lambda: x.detach().requires_grad_())
    if x.dim():
        choices += [
            lambda: x.select(dim, 0) if x.shape[dim] else x,
            lambda: x.narrow(dim, 0, max(x.shape[dim] - 1, 0)),
            lambda: x[:0] if dice.random() < 0.5 else x.narrow(dim, 0, 0),
            lambda: torch.cat((x, x), dim),
            lambda: x.repeat_interleave(2, dim)[(slice(None),) * dim + (slice(None, None, 2),)],
            lambda: torch.cat(x.split(1, dim)[::-1], dim),  # a flip, which torch 2.11 lacks for unsigned integers
            lambda: x.transpose(dim, dice.randrange(x.dim())),
            lambda: x.narrow(dim, 0, 1).expand_as(x) if x.shape[dim] else x,
            lambda: x.transpose(dim, -1).contiguous().transpose(dim, -1),
        ]
    if x.numel() and x.dtype != torch.bool and x.device.type == "cpu":
        choices += [lambda: _with_wild_values(dice, x)] * 6
    return dice.choice(choices)()


def _with_wild_values(dice: random.Random, x: Tensor) -> Tensor:
    x = x.detach().clone(memory_format=torch.contiguous_format)
    limits = torch.finfo(x.dtype) if x.is_floating_point() or x.is_complex() else torch.iinfo(x.dtype)
    for _ in range(dice.choice((1, 1, 3, x.numel()))):
        if x.is_floating_point() or x.is_complex():
            value = dice.choice((*WILD_VALUES, limits.max, limits.min, limits.tiny))
        else:
            wild = (limits.max, limits.min, limits.max - 1, *WILD_INTS)
            value = dice.choice([v for v in wild if limits.min <= v <= limits.max])
        flat, place = x.view(-1), dice.randrange(x.numel())
        if x.dtype == torch.uint64:  # torch 2.11 takes no values from 2**63 on
            flat, value = flat.view(torch.int64), value - (value >> 63 << 64)
        flat[place] = value
    return x


@pytest.fixture(scope="module")
def installed():
    worker = Worker(sanitized=False)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def sanitized():
    if obstacle() is not None:
        pytest.skip(obstacle())
    worker = Worker(sanitized=True)
    yield worker
    worker.close()


def throw(worker, library, name, seeds):
    for seed in seeds:
        arguments = perturbed(plausible(name, seed, odd_values=seed % 2 == 1), seed)
        if library == "seamseg_emulated" and any(type(value) is int and value == LARGE for value in arguments):
            continue
        try:
            worker.call(library, name, arguments, seed, wanted=False)
        except Raised as error:
            if error.kind not in EXPECTED or not error.words.strip():
                pytest.fail(f"{library}::{name}, seed {seed}: {error}")
        except Fault as fault:
            pytest.fail(f"{library}::{name}, seed {seed}: {fault}")


@pytest.mark.parametrize("count", [30, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(installed, name, count):
    throw(installed, "seamseg", name, range(count))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("library", ["seamseg_checked", "seamseg_emulated"])
def test_under_sanitizers(sanitized, library, name):
    throw(sanitized, library, name, range(MANY if library == "seamseg_checked" else MANY // 10))
