# Two commands set up everything on a machine that has python3 (3.11 or newer) with venv and pip, and make:
#
#   make demo    makes the environment, then runs the main job on generated ratings
#   make test    makes the environment, then passes the tests
#
# Another interpreter, another folder:  make test-python PY=python3.13
# Environments are made once, and made again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One worker per core, few enough for the memory of a laptop; a file's tests share one worker, and so its compiled programs.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
PACKAGES := accounting audits dpmf_jax experiments

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-python lint format docs bench cuda clean

help:
	@echo "make demo       set up, then fit, price, save and query a private model on generated ratings"
	@echo "make test       set up, then run the tests (DPMF_DATA names the folder of real ratings, if you have them)"
	@echo "make test-all   every test, also those that take seconds (of a CPU) or minutes"
	@echo "make test-python PY=python3.13   the tests with another interpreter, in its own environment"
	@echo "make lint       formatting, lint and types;   make format mends what can be mended"
	@echo "make docs       set up, then run the tutorials and write the site: docs/_build/docs/index.html"
	@echo "make bench      set up the peers, then time one training step against them"
	@echo "make cuda       set up for an NVIDIA GPU"
	@echo "make clean      remove $(VENV) and caches; runs/ stays"

demo: $(VENV)/.stamp-core
	@$(BIN)/dpmf demo

test: $(VENV)/.stamp-test
	$(PYTEST) -m "not slow and not seconds"

test-all: test
	DPMF_TYPES=unchecked $(PYTEST) -m "slow or seconds"

test-python:
	@test -n "$(PY)" || { echo "error: no interpreter named" >&2; echo "fix: make test-python PY=python3.13" >&2; exit 2; }
	$(MAKE) test PYTHON="$(PY)" VENV=.venv-$(notdir $(PY))

# Types of the tests are checked while `make test` runs, by tests/conftest.py.
lint: $(VENV)/.stamp-lint
	$(BIN)/ruff format --check $(PACKAGES) tests
	$(BIN)/ruff check $(PACKAGES) tests
	$(BIN)/ty check --python $(VENV) --error-on-warning $(PACKAGES)

format: $(VENV)/.stamp-lint
	$(BIN)/ruff format $(PACKAGES) tests
	$(BIN)/ruff check --fix $(PACKAGES) tests

docs: $(VENV)/.stamp-docs
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . docs/_build
	@echo "docs/_build/docs/index.html"

bench: $(VENV)/.stamp-bench
	$(BIN)/dpmf bench step

cuda: $(VENV)/.stamp-cuda
	$(BIN)/dpmf doctor

# ---- the environment ----------------------------------------------------------------------------------------------

$(VENV)/.stamp-core: EXTRAS :=
$(VENV)/.stamp-test: EXTRAS := [test]
$(VENV)/.stamp-lint: EXTRAS := [test,lint]
$(VENV)/.stamp-docs: EXTRAS := [docs,report]
$(VENV)/.stamp-bench: EXTRAS := [bench]
$(VENV)/.stamp-cuda: EXTRAS := [cuda]

$(VENV)/.stamp-%: $(VENV)/.stamp-venv pyproject.toml constraints.txt
	@echo "setting up $(VENV) (dpmf-jax$(EXTRAS)); the first time this takes a minute or two" >&2
	@$(PIP_INSTALL) -e ".$(EXTRAS)"
	@touch $@

# An environment whose interpreter is gone, or is too old, is made again.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: python 3.11 or newer is needed" >&2; \
	  echo "where: PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>&1 | head -n 1)" >&2; \
	  echo "fix: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12, with the name of a newer interpreter" >&2; exit 4; }
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "error: $(PYTHON) could not make the environment $(VENV)" >&2; \
	  echo "fix: install this interpreter's venv and pip (Debian and Ubuntu: the package python3-venv)" >&2; exit 4; }
	@touch $@

.PRECIOUS: $(VENV)/.stamp-venv

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .hypothesis .ruff_cache
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
