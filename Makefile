# Every target sets itself up: a virtual environment in .venv from requirements.lock, then the work.
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
NAME ?=

.PHONY: help setup demo test acceptance soak lint bench clean lock
help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready ## the virtual environment

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "farm needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

demo: setup ## virtual phones, the daemon, and a model benchmarked on each: ends by itself
	$(VENV)/bin/farm demo

test: setup ## unit, integration and one end-to-end path
	$(PY) -m pytest -q tests/unit tests/integration

acceptance: setup ## everything else
	$(PY) -m pytest -q tests/acceptance

soak: setup ## the long storm (not in CI)
	$(PY) -m benchmarks soak

lint: setup ## ruff, mypy --strict, import floors, shellcheck
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	@if command -v shellcheck >/dev/null; then shellcheck device_scripts/*.sh .ci/run; else echo "shellcheck is not installed: scripts not checked"; fi

bench: setup ## make bench NAME=gate; all of them without NAME
	$(PY) -m benchmarks $(NAME)

lock: setup ## write requirements.lock anew from pyproject.toml
	uv pip compile pyproject.toml --extra tvm --group dev --universal --generate-hashes --no-emit-index-url --python-version 3.11 -q -o requirements.lock

clean: ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
