"""Nothing given to an operator can end the process: each call returns, or raises with words."""

import pytest
from support.cuda_emulation.worker import load_operators
from support.emulator import Fault, Raised, Worker, obstacle
from support.op_arguments import plausible
from support.op_mistakes import LARGE, perturbed

from seamseg.ops import implementations

load_operators()
OPERATORS = sorted(implementations())
EXPECTED = {"RuntimeError", "ValueError", "TypeError", "IndexError", "NotImplementedError", "OverflowError"}
# the last is raised by Python where gradients are needed, for an object of a wrong type
EXPECTED |= {"MemoryError", "OutOfMemoryError", "AttributeError"}
MANY = 2000


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
