# One target a habit. `make help` lists them.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: $(VENV)/.ready ## install what the controller needs into .venv

$(VENV)/.ready: requirements.lock pyproject.toml scripts/setup
	scripts/setup $(VENV)
	@touch $@
