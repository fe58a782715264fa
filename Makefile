# Everything runs from .venv, which the first command makes; it needs python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := a2cap pipeline extract model data tests benchmarks

.PHONY: install demo test check bench faults lint types

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "a2 needs python >= 3.11: set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv, which takes some minutes the first time"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/a2 demo

lint: install
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: install
	$(BIN)/mypy .typing/a2cap tests benchmarks

check: lint types
	$(BIN)/pytest -n 2 -q -m 'not slow'

test: lint types
	$(BIN)/pytest -n 2 --cov

faults: install
	$(BIN)/python -m tests.faults.driver --kills 200 --seed 0

# All but the alignment study, which takes an hour: docs/alignment-study.md has its command.
bench: install
	for benchmark in $(filter-out benchmarks/alignment_study.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$benchmark || exit 1; done
