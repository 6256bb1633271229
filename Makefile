# Start with `make demo` and `make test`. Targets create or update .venv when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUN    ?= runs/demo

.PHONY: help setup kernels demo test coverage test-slow gpu lint format reference docs mutants clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY)  ## create .venv with the tested versions

# the kernels are compiled against the installed torch, so torch is installed first
BUILD_NEEDS = 'setuptools>=77' wheel torch

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*.h csrc/*/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "seamseg needs Python >= 3.10; set PYTHON: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@echo "setting up $(VENV): downloading PyTorch (3 GB) and compiling the kernels takes minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv is much faster than pip; fall back to pip without it
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
	@if test -x $(BIN)/uv && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(BUILD_NEEDS) && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --no-build-isolation -e '.[test,parity,lint]'; \
	then :; else \
	  echo "uv failed, trying pip" >&2; \
	  $(BIN)/python -m pip install --quiet --upgrade 'pip>=24' && \
	  $(BIN)/python -m pip install -c constraints.txt $(BUILD_NEEDS) && \
	  $(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[test,parity,lint]'; fi
	@# pip and uv hide what a build says; doctor names kernels that did not compile
	-@$(BIN)/seamseg doctor >/dev/null
	@touch $@

kernels: setup  ## recompile what changed in csrc
	$(BIN)/python setup.py --quiet build_ext --inplace

demo: setup  ## run the toy city end to end (about 4 minutes on 2 cores)
	$(BIN)/seamseg demo --out $(RUN)

# three processes for two cores, as tests wait a fifth of the time, with one thread each by tests/conftest.py; whole files in the
# order of tests/conftest.py, the longest first; pytest-xdist hangs at the end after it has replaced a worker that died: end the run
PROCESSES = $$(( ($$(nproc) * 3 + 1) / 2 ))
PYTEST = $(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

test: setup  ## run the fast tests (4 minutes on 2 cores)
	$(PYTEST)

coverage: setup  ## run the fast tests and report the covered branches in build/coverage
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pytest-cov==7.0.0
	$(PYTEST) --cov=seamseg --cov-branch --cov-report=html:build/coverage --cov-report=term:skip-covered

test-slow: setup  ## run all tests that need no GPU
	$(PYTEST) -m 'not gpu'

# uses $(PYTHON) instead of .venv and no network: a GPU machine may be available for minutes only
gpu:  ## build, check and measure on a GPU (STEPS=build,ops for some, GPU="--wheels DIR"; benchmarks/results/README.md)
	$(PYTHON) benchmarks/gpu.py $(if $(STEPS),--steps $(STEPS)) $(GPU)

lint: setup  ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: setup  ## write docs/config.md and docs/reference/components.md
	$(BIN)/python -m seamseg.config.reference > docs/config.md
	$(BIN)/python -m seamseg.cli.components > docs/reference/components.md

# without .venv and torch, which docs/conf.py replaces by mocks
DOCS_BIN = build/docs_venv/bin

build/docs_venv/.ready: pyproject.toml constraints.txt
	@test -x $(DOCS_BIN)/python || $(PYTHON) -m venv build/docs_venv
	@$(DOCS_BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(DOCS_BIN)/uv pip install --quiet --python $(DOCS_BIN)/python -c constraints.txt --extra docs --requirements pyproject.toml
	@touch $@

docs: build/docs_venv/.ready  ## build the site into build/docs (downloads 60 MB once); warnings are errors
	$(DOCS_BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs
	@echo "open build/docs/index.html"

# in an environment of its own: it needs none of the package's
mutants: setup  ## mutate FILES and run their fast tests on SAMPLE=30 mutants of each: how many do they kill?
	@test -x build/mutants_venv/bin/cosmic-ray || { $(PYTHON) -m venv build/mutants_venv && \
	  build/mutants_venv/bin/pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0; }
	build/mutants_venv/bin/python tests/mutants.py --python "$(CURDIR)/$(BIN)/python" --sample $(or $(SAMPLE),30) $(FILES)

clean:  ## remove build products and runs (keeps .venv)
	rm -rf build dist *.egg-info seamseg/*.so seamseg/kernels.json .pytest_cache .mypy_cache .ruff_cache docs/reference/api/_generated .hypothesis runs
