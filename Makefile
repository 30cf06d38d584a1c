# `make demo` and `make test` set up everything they need in .venv; a machine with Python 3.10 or newer and pip is enough.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TYPED := -m hpir -m hpir.compiler -m hpir.plan -m hpir.costs -p hpir.dialect -p hpir.ir_passes -p hpir.lowering -p hpir.reporting -p hpir.runtime -p hpir.tools

.PHONY: demo test bench lint types filecheck unit docs clean

demo: $(VENV)/ready-demo
	$(BIN)/python examples/train_lm.py

# What does not run tests is done side by side.
test: $(VENV)/ready-test
	$(MAKE) --no-print-directory --jobs 2 lint types filecheck
	$(MAKE) --no-print-directory unit

bench: $(VENV)/ready-bench
	$(BIN)/python benchmarks/run.py

lint: $(VENV)/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The repository root is the package, so the type checker is shown it under its name.
types: $(VENV)/ready-test
	@mkdir -p build/types && ln -sfn ../.. build/types/hpir
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy tests examples benchmarks docs

filecheck: $(VENV)/ready-test
	$(BIN)/lit --quiet tests/filecheck

# Three at a time on two cores: ranks wait for each other much of the time.
unit: $(VENV)/ready-test
	$(BIN)/pytest --quiet --numprocesses 3 --dist loadfile --no-loadscope-reorder

docs: $(VENV)/ready-test
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/ready-%: $(VENV)/ready
	$(PIP) --editable '.[$*]'
	touch $@
