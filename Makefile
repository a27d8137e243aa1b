# Every target sets itself up: a virtual environment in .venv from the lock files, then the work.
VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
NAME ?=
# Tests start hundreds of interpreters, and each would compile farm anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for phones and processes: four at once keep two cores busy (three left a third of them idle). The tests of a file run
# one after the other, in the order they come in: xdist's own would begin the longest files, which have one test, last.
PYTEST := -m pytest -q --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test acceptance coverage mutants soak lint bench docs man clean lock
help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready ## the virtual environment, with what tests, lint and docs need

$(VENV)/.runtime: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "farm needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing TVM and what else requirements.lock names: minutes, and pip prints nothing meanwhile"
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/.ready: $(VENV)/.runtime requirements-dev.lock
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

# The demo times its model under ONNX Runtime too: of that package it needs the shared library alone.
$(VENV)/.demo: $(VENV)/.runtime requirements-dev.lock
	sed -n '/^onnxruntime==/,/[^\\]$$/p' requirements-dev.lock > $(VENV)/onnxruntime.lock
	$(INSTALL) --no-deps --require-hashes -r $(VENV)/onnxruntime.lock
	@touch $@

demo: $(VENV)/.demo ## virtual phones, the daemon, and a model benchmarked on each: ends by itself
	$(VENV)/bin/farm demo

test: setup ## unit, integration and one end-to-end path
	$(PY) $(PYTEST) -n 4 tests/integration tests/unit

# Tests of PyTorch's and Keras's models have an environment of their own above .venv: a TVM beside PyTorch imports it at every
# start. The CPU build by its full name, or none: any other brings several GB of CUDA. Without it those tests are skipped.
TORCH := $(VENV)/torch
CPU_BUILD := torch==2.13.0+cpu
$(TORCH)/.ready: $(VENV)/.ready
	$(PY) -m venv $(TORCH)
	$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > "$$($(TORCH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/farm.pth"
	-$(TORCH)/bin/python -m pip install --quiet $(CPU_BUILD) || $(TORCH)/bin/python -m pip install --quiet --retries 0 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu $(CPU_BUILD)
	-$(TORCH)/bin/python -c 'import torch' && $(TORCH)/bin/python -m pip install --quiet 'keras>=3.15' 'h5py>=3.11' 'onnxscript>=0.5'
	@touch $@

# PyTorch's tests go first and keep a cache of their own: a repetition of what failed then repeats neither too little nor too much.
acceptance: setup $(TORCH)/.ready ## everything else
	$(TORCH)/bin/python $(PYTEST) -n 3 -o cache_dir=$(TORCH)/.pytest_cache tests/acceptance/with_torch || [ $$? = 5 ] # 5: no PyTorch, all skipped
	$(PY) $(PYTEST) -n 4 tests/acceptance --ignore=tests/acceptance/with_torch

# What tells how strong the tests are. Keep a file of before, change tests, and see what is lost:
# .venv/bin/python -m tests.house.lost BEFORE AFTER
$(VENV)/.strength: $(VENV)/.ready
	$(INSTALL) coverage==7.17.5 pytest-cov==7.1.0 mutmut==3.8.1
	@touch $@

coverage: $(VENV)/.strength ## lines and branches of farm/ that the tests run: build/coverage.json (not in CI)
	@mkdir -p build
	$(PY) $(PYTEST) -n 4 --cov=farm --cov-report= tests/integration tests/unit
	-$(PY) -m coverage combine -q --append # of processes that ended last
	$(PY) -m coverage json -q -o build/coverage.json
	$(PY) -m coverage report --format=total

mutants: $(VENV)/.strength ## changes to the decisions of farm/ that the tests find: build/mutants.txt (an hour; not in CI)
	@mkdir -p build
	$(PY) -m mutmut run --max-children 2
	$(PY) -m mutmut results --all true > build/mutants.txt
	@sed 's/.*: //' build/mutants.txt | sort | uniq -c

soak: setup ## an hour of faults on 20 phones (not in CI); SOAK_MINUTES=10 make soak
	$(PY) -m benchmarks soak

lint: setup ## ruff, mypy --strict, import layers, dependencies, tests.house, shellcheck
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/deptry .
	$(PY) -m tests.house
	@if command -v shellcheck >/dev/null; then shellcheck device_scripts/*.sh .ci/run .ci/bare_path; else echo "shellcheck is not installed: scripts not checked"; fi

bench: setup ## make bench NAME=gate; all of them without NAME
	$(PY) -m benchmarks $(NAME)

docs: setup ## the documents as web pages, in build/docs; warnings are errors
	$(PY) -m sphinx -E -W --keep-going -q -b html docs build/docs

man: setup ## man/farm.1 from the commands; -E: Sphinx does not see that code changed
	$(PY) -m sphinx -E -q -b man docs build/man
	cp build/man/farm.1 man/farm.1

LOCK := uv pip compile pyproject.toml --extra tvm --universal --generate-hashes --no-emit-index-url --python-version 3.11 -q
lock: ## write requirements.lock (to run farm) and requirements-dev.lock (to work on it) anew from pyproject.toml
	$(LOCK) -o requirements.lock
	$(LOCK) --group dev --constraint requirements.lock -o requirements-dev.lock

clean: ## remove what the targets made
	rm -rf $(VENV) mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
