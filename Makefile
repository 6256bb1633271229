# Two commands are all one needs: `make demo` and `make test`. Each sets up .venv first when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUN    ?= runs/demo

# glibc gives large buffers back to the system after every layer; keeping them saves CPU time (docs/performance.md).
export MALLOC_MMAP_THRESHOLD_ ?= 268435456
export MALLOC_TRIM_THRESHOLD_ ?= 8589934592
export MALLOC_TOP_PAD_        ?= 268435456

.PHONY: help setup kernels demo test test-slow gpu lint format docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with the tested versions

# the kernels are compiled against the torch that is installed, so torch goes first
BUILD_NEEDS = 'setuptools>=77' wheel torch

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*.h csrc/*/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "seamseg needs Python >= 3.10; say which: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@echo "setting up $(VENV): PyTorch is downloaded (3 GB) and the kernels are compiled, which takes minutes"
	@command -v nvcc >/dev/null && echo "nvcc is here: CUDA kernels are compiled too, up to ten minutes more; SEAMSEG_KERNELS=cpu leaves them out" || true
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv installs in a fraction of pip's time; where it cannot be had, pip does
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
	@if test -x $(BIN)/uv && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(BUILD_NEEDS) && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --no-build-isolation -e '.[test,parity,lint]'; \
	then :; else \
	  echo "uv could not install, trying pip" >&2; \
	  $(BIN)/python -m pip install --quiet --upgrade 'pip>=24' && \
	  $(BIN)/python -m pip install -c constraints.txt $(BUILD_NEEDS) && \
	  $(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[test,parity,lint]'; fi
	@touch $@

kernels: setup  ## compile what changed in csrc
	$(BIN)/python setup.py --quiet build_ext --inplace

demo: setup  ## toy city: generate, prepare, train, predict, evaluate, report (under 10 minutes on 2 cores)
	$(BIN)/seamseg demo --out $(RUN)

# one process a core, one thread each: torch's threads fight over few cores when several processes run;
# whole files in the order of tests/conftest.py, the longest first
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

test: setup  ## the fast tests (5 minutes on 2 cores)
	$(PYTEST)

test-slow: setup  ## all tests: also those with sanitizers, compilers, killed processes and many processes
	$(PYTEST) -m 'not gpu'

# the Python that is there and no network: a machine with a GPU may be at hand for minutes only
gpu:  ## on a machine with a GPU: kernels, checks, figures (STEPS=build,ops for some, GPU="--time-limit 9"; benchmarks/results/README.md)
	$(PYTHON) benchmarks/gpu.py $(if $(STEPS),--steps $(STEPS)) $(GPU)

lint: setup  ## style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## the generated pages
	$(BIN)/python -m seamseg.config.reference > docs/config.md

clean:  ## remove what was built and run (keeps .venv)
	rm -rf build dist *.egg-info seamseg/*.so seamseg/kernels.json .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
