"""Fixtures for all tests, the order of their files, and the settings of property-based tests."""

import os
import signal
import sys
from pathlib import Path

# before torch is imported, and for all processes that tests start: equal bits need equal threads, and several processes
# with as many threads as the machine has cores wait for each other
os.environ["OMP_NUM_THREADS"] = "1"
# images of containers often switch bytecode off: each of hundreds of processes would compile torch, which takes longer
# than its import
os.environ["PYTHONDONTWRITEBYTECODE"] = ""

import pytest
from hypothesis import Phase, settings
from support.browsers import browser  # noqa: F401
from support.components import component_options, imported  # noqa: F401
from support.micro import micro, micro_config, micro_run, narrow, published_config, refused, seamseg_main  # noqa: F401
from support.networks import cityscapes, golden_net  # noqa: F401
from support.small_models import semantic_model, semantic_predictor  # noqa: F401
from support.source_files import make_folder  # noqa: F401

from seamseg.utils import process
from seamseg.utils.output import console

LONG = (
    # of slow tests
    "ops/test_cuda_emulation",
    "benchmarks/test_gpu",
    "benchmarks/test_smallest_forms",
    "test_testing",
    "training/test_compiled",
    "ops/test_fuzz",
    "maps/idmaps/test_fuzz",
    # of fast tests
    "contrib/test_maps",
    "training/test_two_processes",
    "training/test_interrupt",
    "training/test_graphs",
    "models/test_inference_parity",
    "training/test_resume",
    "ops/test_contract",
    "models/test_distributed",
)
"""Files that take longest, the longest first: started last, one would keep a single process at work in the end."""

# no deadline: the first call of an operator is slow, and so are busy machines; in CI the examples are always the same
settings.register_profile("seamseg", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("seamseg")
# whether a test fails, not its smallest example
settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))


def pytest_configure(config: pytest.Config) -> None:
    """Keep large buffers, as the commands do: networks of the published size take 15 % less CPU time."""
    process.apply_settings()
    sys.dont_write_bytecode = False
    # ignored in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long files first; `--no-loadscope-reorder` keeps this order where several processes run the tests."""
    root = Path(__file__).parent
    place = {root / f"{name}.py": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture
def signals_end():
    """Let SIGHUP and SIGTERM end this process and those that the test starts; `nohup` ignores the first."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _not_quiet():
    """Undo the `--quiet` of a command, which holds for the process."""
    yield
    console.quiet = False
