# Every target works from a bare checkout: .venv is made and filled when it is missing or out of date.
# Needs python3 with venv (Debian: apt install python3-venv) and make. PIP_ARGS is passed to every install.

PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
# without --no-compile, pip compiles thousands of files that nothing here imports, for a minute
PIP      := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check $(PIP_ARGS) -c constraints.txt
READY    := $(VENV)/.ready
BENCH    := $(VENV)/.bench
DEMO     := $(VENV)/.demo
SITE     := $(VENV)/.site
WORKERS  ?= 2

# the bytecode that pip leaves out is written at the first import: without it, each process compiles torch anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-all check format fuzz bench clean

help:
	@echo "make demo      quantize a picture classifier, compare, write build/demo/report.html"
	@echo "make docs      build the site into build/site, strictly"
	@echo "make test      run the tests, of those with many cases a fifth"
	@echo "make test-all  run every case of every test"
	@echo "make check     lint, formatting, strict types"
	@echo "make format    apply formatting and safe lint fixes"
	@echo "make fuzz      try forged files, all crafted ones and many mutations, and random lives of models (hours)"
	@echo "make bench     install the benchmark packages and run benchmarks/"
	@echo "make clean     remove .venv and caches"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "No venv module. On Debian: apt install python3-venv"; exit 1; }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (minutes the first time) ..."
	@$(PIP) -e '.[dev]'
	@touch $@

.PHONY: $(VENV)
$(VENV): $(READY)

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (minutes the first time) ..."
	@$(PIP) -e '.[demo,native]'
	@touch $@

demo: $(DEMO)
	$(BIN)/fxquant demo --output build/demo

$(SITE): $(READY)
	@echo "Installing what builds the site ..."
	@$(PIP) -e '.[docs]'
	@touch $@

docs: $(SITE)
	$(BIN)/mkdocs build -q --strict
	@echo "The site is in build/site. To read and search it: python3 -m http.server -d build/site"

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --all

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(READY)
	$(BIN)/python -W ignore tests/forge/run.py --mutations 20000 --calls 20000
	$(BIN)/python -m pytest -n $(WORKERS) --all --hypothesis-profile=fuzz tests/test_state_machine.py tests/engines/native/test_fuzz.py tests/engines/native/test_bands.py

$(BENCH): $(READY)
	@echo "Installing the benchmark packages ..."
	@$(PIP) -e '.[dev,bench]'
	@touch $@

bench: $(BENCH)
	@set -e; for script in benchmarks/*.py; do \
		[ -e "$$script" ] || { echo "benchmarks/ holds no scripts yet"; exit 0; }; \
		case "$$script" in */_*) continue;; esac; \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
