# The one door to the project: people and CI call the same targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PROVIDER ?= auto
ROUNDS ?= 20
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

##@ Start here

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Bring up a cluster, install the operator, show who may recall what
	@$(BIN)/python -m tests.demo --provider $(PROVIDER)

test: setup ## Set up what is needed and run every test
	@$(BIN)/python -m tests.cluster build --provider $(PROVIDER)
	@$(PYTEST) --provider $(PROVIDER) --everything

##@ Work on it

setup: .venv/.stamp ## Make .venv from the lock file

.venv/.stamp: requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@echo "setting up .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

check: setup ## Format, lint, types, layers, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m memory_operator crds --check

format: setup ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

unit: setup ## Tests that need neither a network nor a server
	@$(PYTEST) tests/unit

integration: setup ## Tests against a real API server and a real SpiceDB
	@$(BIN)/python -m tests.cluster build --provider $(PROVIDER)
	@$(PYTEST) --provider $(PROVIDER) tests/integration

e2e: setup ## Tests of the installed chart on a real node
	@$(BIN)/python -m tests.cluster build --provider $(PROVIDER)
	@$(PYTEST) --provider $(PROVIDER) --everything tests/e2e

crds: setup ## Generate crds/ and the chart's copy from the models
	@$(BIN)/python -m memory_operator crds --write

lock: ## Resolve the lock files again (needs uv)
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header pyproject.toml -o requirements.lock
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock
	@uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-header requirements-build.in -o requirements-build.lock

##@ A cluster to play with

up: setup ## Bring up a cluster (kind where Docker works, otherwise a local node)
	@$(BIN)/python -m tests.cluster up --provider $(PROVIDER)

down: setup ## Take it down, leaving nothing behind
	@$(BIN)/python -m tests.cluster down --provider $(PROVIDER)

status: setup ## Say what runs
	@$(BIN)/python -m tests.cluster status --provider $(PROVIDER)

image: setup ## Build the images and load them into the cluster
	@$(BIN)/python -m tests.cluster images --provider $(PROVIDER)

##@ Long runs

bench: setup ## Measure; prints the tables of docs/benchmarks.md
	@$(BIN)/python -m tests.cluster build --provider local
	@$(BIN)/python -m benchmarks

soak: setup ## One hour's worth of changes, with the operator's memory
	@$(BIN)/python -m tests.cluster build --provider local
	@$(BIN)/python -m benchmarks.soak

chaos: setup ## Kill and cut things at random moments for a long time
	@$(BIN)/python -m tests.cluster build --provider $(PROVIDER)
	@$(PYTEST) --provider $(PROVIDER) --chaos=$(ROUNDS) tests/integration/test_faults.py

clean: down ## Remove the cluster and the virtual environment; keep the build cache
	@rm -rf .venv dist

.PHONY: help demo test setup check format unit integration e2e crds lock up down status image bench soak chaos clean
