# Everything sets itself up in .venv: `make demo` and `make test` start from a bare clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

DEMO := runs/demo

.PHONY: demo test test-all test-slow chaos test-kernels check lint types clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is older: make PYTHON=python3.12 test"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## three methods on a small synthetic city, side by side, and a page of them
	$(BIN)/cnfgnn compare experiments/demo.toml --out $(DEMO)
	$(BIN)/cnfgnn report $(DEMO)/*-seed* --out $(DEMO)/report.html

test: $(READY)  ## the tests, warnings as errors, and the 20 slowest of them: a few minutes
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)  ## what takes longer: federations of real processes, whole plans of runs
	$(BIN)/python -m pytest -m slow -n auto

chaos: $(READY)  ## what a federation survives, at length
	$(BIN)/python -m pytest -m chaos

test-all: test test-slow chaos  ## every test there is

test-kernels: $(READY)  ## the GPU kernels against their plain twins, interpreted where there is no GPU
	@# not in constraints.txt: PyTorch for CUDA brings the version that it wants
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet triton==3.9.0
	$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || export TRITON_INTERPRET=1; \
		$(BIN)/python -m pytest tests/models/test_kernels.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

check: lint types test  ## the whole gate

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
