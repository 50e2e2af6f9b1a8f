# Every target sets up what it needs: Python 3.11+, pip and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PY = $(BIN)/python
# bytecode can't run instead of source when none is written
export PYTHONDONTWRITEBYTECODE = 1

# install the requirements that pyproject.toml lists; the packages themselves run from this folder
define install
	@$(PY) -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*$(1), sep='\n')" \
	  > $(VENV)/requirements.txt
	@$(BIN)/pip install --quiet --constraint constraints.txt --requirement $(VENV)/requirements.txt
endef

PRESET ?= auto
DATA ?= auto
SWEEP ?= calibration
SEED ?= 101
DEVICE ?= cuda
CONTRACT ?= quick-v1
LEVEL ?= V3

.DEFAULT_GOAL = help
.PHONY: help setup sweep run verify test test-cuda attacks bench lint

help: ## what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  options: DATA=auto|patches|cifar10|FOLDER  PRESET=auto|quick-v1|cifar10-v1  OUT=FOLDER  DEVICE=cuda|cpu"

setup: $(VENV)/.runtime ## make the virtual environment that the other targets use

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,project['dependencies'])
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(call install,project['optional-dependencies']['dev'])
	@touch $@

sweep: $(VENV)/.runtime ## calibrate: train every arm and seed, score blind, decide, report
	@set -e; \
	folder=$$($(PY) -m runner sweep sweep=$(SWEEP) preset=$(PRESET) data=$(DATA) $(if $(OUT),out=$(OUT))); \
	$(PY) -m evaluator score "$$folder"; \
	$(PY) -m evaluator unblind "$$folder"; \
	$(PY) -m vqkit.analysis calibrate "$$folder"; \
	$(PY) -m vqkit.analysis report "$$folder"

run: $(VENV)/.runtime ## one intervention: INTERVENTION=FILE SEED=101 DEVICE=cuda|cpu
	$(PY) -m runner run intervention=$(INTERVENTION) contract=$(CONTRACT) seed=$(SEED) device=$(DEVICE) data=$(DATA) \
	  $(if $(OUT),out=$(OUT))

verify: $(VENV)/.runtime ## verify a run independently: RUN=FOLDER DATA=FOLDER
	$(PY) -m evaluator verify $(RUN) --level $(LEVEL) $(if $(filter-out auto,$(DATA)),--data $(DATA))

test: $(VENV)/.dev ## the test suite
	$(PY) -m pytest

test-cuda: $(VENV)/.dev ## the tests that need a CUDA device
	$(PY) -m pytest -m cuda

attacks: $(VENV)/.dev ## attack the evaluator; prints each attack, what stops it, at which level
	$(PY) -m tests.attacks

bench: $(VENV)/.dev ## measure speed side by side; writes benchmarks/RESULTS.md
	$(PY) -m benchmarks

lint: $(VENV)/.dev ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
