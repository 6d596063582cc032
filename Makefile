# One target a habit. `make help` lists them.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-down test test-quick test-vm test-vm-arm64 lint format docs bench-execs bench-proxy bench-crowd lock

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

setup: $(VENV)/.ready ## install what the controller needs into .venv

$(VENV)/.ready: requirements.lock pyproject.toml scripts/setup
	scripts/setup $(VENV)
	@touch $@

demo: ## three throw-away hosts, provisioned, verified, and a streamed answer
	scripts/demo

demo-down: setup ## take the demo's hosts away
	$(BIN)/edge lab down

test: setup ## every test: unit, deploy, proxy, and real hosts in the lab
	scripts/test

test-quick: setup ## the tests that need no hosts
	scripts/browser
	$(BIN)/python -m pytest -n 2 tests/unit tests/deploy tests/proxy tests/page

test-vm: setup ## what only a boot can show: emulated machines with a kernel and a GRUB of their own
	scripts/test-vm

test-vm-arm64: setup ## the same for the arm64 machine alone; makes its image (half an hour, once)
	scripts/test-vm arm64

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m edge.reference --check

format: setup ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## write docs/settings.md anew from edge/settings.py
	$(BIN)/python -m edge.reference --write

screenshots: setup ## write docs/images anew: the page in Chromium
	scripts/browser
	PYTHONPATH=.:files $(BIN)/python -m tests.page.screenshots

bench-execs: setup ## SSH commands a host, first and converged run, on the lab's hosts
	$(BIN)/python bench/execs.py

bench-proxy: setup ## what the proxy adds to the engine's stream, beside HAProxy, LiteLLM and the recipe (10 min)
	$(BIN)/python -m bench.proxy $(ARGS)

bench-crowd: setup ## a real engine on a lab host: 5 clients, then 50 at once, 50 rounds each (20 min)
	$(BIN)/python -m bench.crowd $(ARGS)

lock: setup ## resolve the requirements anew (hashes, no addresses)
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --upgrade --extra dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --upgrade files/chat_proxy/requirements.in \
	  -o files/chat_proxy/requirements.lock
