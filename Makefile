# Every target runs from .venv, which the first one creates; it needs python >= 3.11 and make.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
SOURCES := a2cap pipeline extract model data tests benchmarks

# Compiled tests are kept: pytest rewrites their asserts, which takes each process ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test uncovered covered ray check bench faults mutants site lint types

install: .venv/installed

.venv/installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "a2 needs python >= 3.11: set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv; the first time takes some minutes"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/a2 demo

lint: install
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: install
	$(BIN)/mypy .typing/a2cap tests benchmarks

# By file, so that what the tests of a file share is made once.
check: lint types
	$(BIN)/pytest -n 2 -q -m 'not slow' --dist loadfile --hypothesis-profile quick

# Types and Ray keep one core busy for minutes, so each runs beside tests.
test: lint
	$(MAKE) --jobs 2 uncovered types
	$(MAKE) --jobs 2 covered ray

# Branches are traced in the tests of these boxes alone: tracing the others costs a third more.
COVERED := tests/pipeline/engine tests/pipeline/extraction tests/pipeline/test_experiment.py tests/data/features
# In a process of its own: Ray's threads outlive its cluster, and a process with them that forks,
# as loaders do, can hang.
RAY := tests/pipeline/extraction/test_ray_engine.py
uncovered: install
	$(BIN)/pytest -n 2 --dist worksteal $(COVERED:%=--ignore=%) --deselect $(RAY)

covered: install
	$(BIN)/pytest -n 2 $(COVERED) --deselect $(RAY) --cov

ray: install
	$(BIN)/pytest $(RAY)

faults: install
	$(BIN)/python -m tests.faults.driver --kills 200 --seed 0

# One change of the code at a time, 200 in all: which of them does no test notice?
mutants: install
	$(BIN)/python -m tests.mutants --count 200 --seed 0

# The site of docs/, in site/; broken links are errors.
site: install
	$(BIN)/mkdocs build

# All figures in short forms, compared with benchmarks/results.
bench: install
	$(BIN)/python -m benchmarks.bench
