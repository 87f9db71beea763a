# Every target sets itself up in .venv, from a bare clone. `make demo` installs what running needs;
# the other targets also install the development tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
LOWEST := .venv-lowest
SBOM := .venv-sbom
# A process gets tests that stand together, so that it sets up what they share once.
PARALLEL := -n auto --dist worksteal
PIP := -m pip install --quiet --constraint constraints.txt
# The parts of locked/ that are installed first and by their hashes, as .ci/run does; without, versions alone count.
LOCKED ?=
BY_HASH := -m pip install --quiet --require-hashes --no-deps
# Tests start hundreds of processes: without cached bytecode, each of them compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-slow test-lowest trials chaos fuzz test-kernels check lint types docs tables sbom lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cnfgnn needs Python 3.11 or newer, and $(PYTHON) is older. Try: make PYTHON=python3.12 demo"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),$(BIN)/python $(BY_HASH) $(LOCKED:%=-r locked/%.txt))
	$(BIN)/python $(PIP) torch
	$(BIN)/python $(PIP) $(if $(LOCKED),--no-build-isolation) --editable .
	@touch $@

$(READY_DEV): $(READY)
	$(BIN)/python $(PIP) $(if $(LOCKED),--no-build-isolation) --editable '.[dev]'
	@touch $@

demo: $(READY)  ## train three methods on a small synthetic city, print a table, write a page
	$(BIN)/cnfgnn demo

test: $(READY_DEV)  ## the quick tests, with warnings as errors: a few minutes
	$(BIN)/python -m pytest $(PARALLEL)

test-slow: $(READY_DEV)  ## longer tests: federations of real processes, whole plans of runs
	$(BIN)/python -m pytest -m 'slow and not chaos and not trials' $(PARALLEL)

trials: $(READY_DEV)  ## more random trainings than test-slow has: of privacy, and of every method
	$(BIN)/python -m pytest -m trials $(PARALLEL)

chaos: $(READY_DEV)  ## kill, pause and cut off the processes of a federation, at length
	$(BIN)/python -m pytest -m chaos -n 2

fuzz: $(READY_DEV)  ## damaged input for whatever reads messages and files, SECONDS each
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),20)

test-all: test test-slow trials chaos  ## all tests

test-kernels: $(READY_DEV)  ## the GPU kernels against plain PyTorch; without a GPU, in Triton's interpreter
	@# Not in constraints.txt: PyTorch for CUDA brings the version that it needs.
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python $(BY_HASH) -r locked/kernels.txt
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || export TRITON_INTERPRET=1; \
		$(BIN)/python -m pytest tests/models/test_kernels.py

test-lowest:  ## the quick tests with the lowest versions that pyproject.toml admits, in .venv-lowest
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python $(PIP) torch pytest pytest-xdist hypothesis selenium
	$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/lowest.txt --editable '.[federation,live]'
	@# Old packages use what newer ones deprecate, so warnings are no errors here.
	$(LOWEST)/bin/python -m pytest $(PARALLEL) -W default

lint: $(READY_DEV)  ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY_DEV)  ## mypy, strict
	$(BIN)/mypy

docs: $(READY_DEV)  ## build the documentation into site/; warnings and broken links are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -d $(VENV)/doctrees docs site
	@echo "open site/index.html"

tables: $(READY_DEV)  ## write the tables of README.md and docs/ that are made from experiments/records
	$(BIN)/python studies/docs_tables.py

sbom: $(READY_DEV)  ## what the environment holds, with versions and licences, as CycloneDX in sbom.json
	$(PYTHON) -m venv $(SBOM)
	$(SBOM)/bin/python -m pip install --quiet 'cyclonedx-bom>=7,<8'
	$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.json $(BIN)/python

lock: $(READY_DEV)  ## the hashes of the versions in constraints.txt, in locked/; after each change of that file
	$(BIN)/python .ci/lock.py

check: lint types docs test  ## everything that a change must pass

clean:  ## remove what these targets made, except runs/
	rm -rf $(VENV) $(LOWEST) $(SBOM) site sbom.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
