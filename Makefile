# make bench and make test set everything up on a fresh machine with Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two workers share two cores: more threads of BLAS than one each would wait for each other.
THREADS := 1
PYTEST = OPENBLAS_NUM_THREADS=$(THREADS) OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest -q
TESTS = $(PYTEST) --numprocesses 2 --dist worksteal
# Kernels of OpenBLAS that this CPU can run: the last bits of a product differ between them.
CORE_TYPES := Prescott $(if $(shell grep -m1 -w avx2 /proc/cpuinfo 2>/dev/null),Haswell) \
  $(if $(shell grep -m1 -w avx512vl /proc/cpuinfo 2>/dev/null),SkylakeX)

# Tests and benchmarks read real data sets from here; without it the tests that need them skip.
ifneq ($(wildcard ../shared/data),)
export SECUREVFL_DATA ?= $(abspath ../shared/data)
endif

.PHONY: venv bench test test-all test-core-types check imports format docs site clean

venv: .venv/installed

bench: .venv/installed
	$(BIN)/securevfl bench tradeoff --json results/tradeoff.json

test: .venv/installed-dev check
	$(TESTS) -m "not slow and not framework"
	$(PYTEST) -m "framework and not slow" tests/end_to_end

test-all: .venv/installed-dev check
	$(TESTS) -m "not framework" --cov --cov-report=term-missing:skip-covered --cov-fail-under=90
	$(PYTEST) -m framework tests/end_to_end
	$(MAKE) test-core-types THREADS=1
	$(MAKE) test-core-types THREADS=2

test-core-types: .venv/installed-dev
	set -e; for type in $(CORE_TYPES); do OPENBLAS_CORETYPE=$$type $(TESTS) -m "not slow and not framework"; done

check: .venv/installed-dev imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

imports: .venv/installed-dev
	$(BIN)/lint-imports --no-logo

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tables only; `python -m bench.NAME --record` measures.
docs: .venv/installed
	$(BIN)/python -m bench --tables

# What is in docs/, and the reference from the code, as pages in build/site.
site: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf .venv build results models

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "securevfl needs Python 3.11 or later: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt $(wildcard securevfl/crypto/native/*.[ch])
	$(PIP_INSTALL) --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP_INSTALL) --editable '.[dev,docs]'
	@touch $@
