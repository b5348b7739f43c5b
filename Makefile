# Every target makes .venv itself when it is missing or pyproject.toml or constraints.txt is newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint check bench clean

help:  ## Show this list.
	@grep -E '^[a-z]+: .*##|^[a-z]+:  ##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: $(STAMP)  ## Make .venv with everything for users and developers.

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)  ## Watch two models get explained, beside shap; pictures go to demo-output/.
	$(BIN)/cortx demo --out demo-output

test: $(STAMP)  ## Run all tests (minutes). Those of the published Census target need CORTX_DATA.
	$(BIN)/python -m pytest

lint: $(STAMP)  ## Lint, format, types and import directions.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## The gate before every commit: lint and the fast tests (about a minute).
	$(BIN)/python -m pytest -m "not slow"

bench: $(STAMP)  ## Run every benchmark; results go to benchmarks/results/.
	$(BIN)/python -m benchmarks.run_all

clean:  ## Remove caches and built files; .venv stays.
	rm -rf build dist demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
