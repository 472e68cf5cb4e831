# Two commands are enough: `make sweep` and `make test`. Each makes .venv and installs what it needs on its first run,
# and again only when pyproject.toml or requirements.lock has changed.
#   make sweep ARGS="algo=ppo env=acrobot budget.trials=8"

VENV ?= .venv
ARGS ?=
PIP_ARGS ?=
LOCK ?= requirements.lock
# The first of these that runs and is new enough; `make sweep PYTHON=/path/to/python3.12` names another one.
FIND_PYTHON := for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo "$$p" && break; done
PYTHON ?= $(or $(shell $(FIND_PYTHON)),python3)

BIN := $(VENV)/bin
# pip compiles 18,000 files on one core, a third of the installation: compile what a sweep may import, on all cores.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c $(LOCK) $(if $(CI),-q) $(PIP_ARGS)
COMPILE := $(BIN)/python -m compileall -q -j 0 \
	-x '/(tests?|testing|sympy|databricks|networkx|scipy|sklearn|_inductor|onnx|fontTools|pip|setuptools)/' \
	$(VENV)/lib/python3*/site-packages >/dev/null || true # what cannot be compiled is a template, not a module

.PHONY: help sweep test test-fast test-all next-ray ui lint format docs bench soak clean
.NOTPARALLEL:

help:
	@echo 'make sweep [ARGS="algo=ppo env=acrobot budget.trials=8"]   search, register the winner'
	@echo 'make test  [ARGS="-k console"]                             all tests but the nightly ones: eleven minutes'
	@echo 'make test-fast                                             those in one process, without training: four minutes'
	@echo 'make test-all                                              every test, with an hour of simulated crashes'
	@echo 'make next-ray                                              the contract tests with the newest Ray, in build/next-ray'
	@echo 'make ui                                                    MLflow in the browser, every trial in it'
	@echo 'make lint | make format                                    ruff and mypy | let ruff rewrite'
	@echo 'make docs                                                  the documentation as a site, in build/site'
	@echo 'make bench                                                 side by side with plain Ray Tune and RLlib'
	@echo 'make soak [ARGS=--quick]                                   kills, outages and faults: what is lost'
	@echo 'make clean                                                 remove .venv and caches; sweeps stay'

sweep: $(VENV)/.for-use
	@$(BIN)/python -m sweeps.run $(ARGS)

# tests/conftest.py puts the tests that share a Ray, a server or a sweep into one group, which one worker runs.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0

test: $(VENV)/.for-tests
	@$(PYTEST) -m "not nightly" $(ARGS)

test-fast: $(VENV)/.for-tests
	@$(PYTEST) -m "fast and not nightly" --ignore=tests/whole --ignore=tests/crash $(ARGS)

# Each day begins with a seed of its own, which a failure prints.
test-all: $(VENV)/.for-tests
	@RLTUNE_CRASH_S=$${RLTUNE_CRASH_S:-3600} RLTUNE_CRASH_SEED=$${RLTUNE_CRASH_SEED:-$$(date +%Y%m%d)0000} \
		$(PYTEST) $(ARGS)

# With another Ray than the tested one, in an environment of its own; pip says that rltune's bound forbids it. CONTRIBUTING.md,
# "Try the next Ray", says what to read when one of these tests fails.
RAY ?= ray[tune,rllib]
next-ray:
	@$(MAKE) --no-print-directory build/next-ray/.for-tests VENV=build/next-ray
	@build/next-ray/bin/python -m pip install --disable-pip-version-check -q --upgrade '$(RAY)'
	@# rltune refuses versions beyond its bounds, which its installed metadata has.
	@sed -i.bak -E '/^Requires-Dist: (ray|gymnasium)/s/<[0-9.]+,?//' build/next-ray/lib/python3*/site-packages/rltune-*.dist-info/METADATA
	@build/next-ray/bin/python -c 'import ray; print("Ray", ray.__version__)'
	@build/next-ray/bin/python -m pytest tests/compat tests/engine/test_contract.py $(ARGS)

ui: $(VENV)/.for-use
	@MLFLOW_DISABLE_TELEMETRY=true $(BIN)/mlflow ui $(ARGS)

lint: $(VENV)/.for-tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.for-tests
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.for-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet $(ARGS)
	@echo build/site/index.html

bench: $(VENV)/.for-tests
	@$(BIN)/python -m benchmarks.run $(ARGS)

soak: $(VENV)/.for-tests
	@$(BIN)/python -m benchmarks.soak $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.for-use: pyproject.toml requirements.lock | $(BIN)/python
	@echo "== installing rltune into $(VENV): a few minutes, this once =="
	@$(PIP_INSTALL) -e .
	@echo '== compiling what was installed: about a minute =='
	@$(COMPILE)
	@touch $@

$(VENV)/.for-tests: pyproject.toml requirements.lock | $(BIN)/python
	@echo "== installing rltune and its test tools into $(VENV): a few minutes, this once =="
	@$(PIP_INSTALL) -e '.[dev]'
	@echo '== compiling what was installed: about a minute =='
	@$(COMPILE)
	@$(BIN)/python -c 'from rltune.engine.kernels.compiler import KERNELS, load_kernels; [load_kernels(name) for name in KERNELS]' # or each worker does
	@touch $@ $(VENV)/.for-use

$(VENV)/.for-docs: pyproject.toml requirements.lock | $(BIN)/python
	@echo "== installing rltune and what builds its documentation into $(VENV) =="
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
		echo "error: PYTHON=$(PYTHON) is $$("$(PYTHON)" -V 2>/dev/null || echo 'not to be found')"; \
		echo "  allowed: Python 3.11, 3.12 or 3.13 (python3.11, python3.12, python3.13 and python3 were tried)"; \
		echo "  try:     install one of them, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; } >&2
	@"$(PYTHON)" -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) cannot make a virtual environment"; \
		echo "  try:     install its venv package (Debian, Ubuntu: apt install python3-venv)"; exit 2; } >&2
