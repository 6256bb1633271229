"""Nothing given to an operator can end the process: each call returns, or raises with words."""

import importlib
import inspect
import pkgutil

import pytest
from support.cuda_emulation.worker import load_operators
from support.emulator import Fault, Raised, Worker, obstacle
from support.op_arguments import plausible, plausible_for
from support.op_mistakes import describe, perturbed

import seamseg.ops
from seamseg.ops import implementations

load_operators()
OPERATORS = sorted(implementations())
EXPECTED = {"RuntimeError", "ValueError", "TypeError", "IndexError", "NotImplementedError", "OverflowError"}
EXPECTED |= {"MemoryError", "OutOfMemoryError", "_ArrayMemoryError", "AxisError"}
EXPECTED |= {"AttributeError"}  # raised by Python for an object of a wrong type; type hints document the right one
INTERNAL = ("abn_channels", "abn_steps", "activation", "reference", "sync")
MANY = 2000
COUNTS = [30, pytest.param(MANY, marks=pytest.mark.slow)]


def public_functions():
    """Module and name of the functions of `seamseg.ops` that can be called with values alone."""
    for module in pkgutil.iter_modules(seamseg.ops.__path__):
        if module.name.startswith("_") or module.name in INTERNAL:
            continue
        members = vars(importlib.import_module(f"seamseg.ops.{module.name}"))
        for name, function in members.items():
            mine = inspect.isfunction(function) and function.__module__ == f"seamseg.ops.{module.name}"
            if mine and not name.startswith("_") and plausible_for(function, 0) is not None:
                yield function.__module__, name


FUNCTIONS = list(public_functions())


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
    """Call with arguments drawn from each seed."""
    function = getattr(importlib.import_module(library), name) if "." in library else None
    for seed in seeds:
        odd = seed % 2 == 1
        arguments = plausible(name, seed, odd) if function is None else plausible_for(function, seed, odd)
        arguments = perturbed(arguments, seed)
        try:
            worker.call(library, name, arguments, seed, wanted=False)
        except Raised as error:
            if error.kind not in EXPECTED or not error.words.strip():
                pytest.fail(f"{library}::{name}, seed {seed}: {describe(arguments)}\n{error}")
        except Fault as fault:
            pytest.fail(f"{library}::{name}, seed {seed}: {describe(arguments)}\n{fault}")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(installed, name, count):
    throw(installed, "seamseg", name, range(count))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("module", "name"), FUNCTIONS, ids=[name for _, name in FUNCTIONS])
def test_functions(installed, module, name, count):
    throw(installed, module, name, range(count))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("library", ["seamseg_checked", "seamseg_emulated"])
def test_under_sanitizers(sanitized, library, name):
    throw(sanitized, library, name, range(MANY if library == "seamseg_checked" else MANY // 10))
