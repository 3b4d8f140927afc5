# Two commands do everything on a fresh machine that has Python 3.10 or newer, make and a package registry:
#   make demo   the main job on a real file, explained        make test   everything that is checked

PYTHON ?= python3
BASE := .venv/bin/python
FULL := .venv-test/bin

.PHONY: help demo test lint format bench campaign examples clean

help: ## Show the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12

demo: ## Install the base package and do the main job on a real checkpoint
	@$(PYTHON) -m tools.environments base
	@$(BASE) examples/01_convert_and_look_inside.py

test: ## Install everything and run every check and test, on the oldest and newest Python too
	@$(PYTHON) -m tools.run_tests

lint: ## Linters, types, imports and sizes only
	@$(PYTHON) -m tools.run_tests --only lint

format: ## Format the code
	@$(PYTHON) -m tools.environments test
	$(FULL)/ruff check --fix-only --quiet .
	$(FULL)/ruff format .

bench: ## Print the table of measured times
	@$(PYTHON) -m tools.environments test
	$(FULL)/python -m tools.bench

campaign: ## Long fuzz and fault runs (at least ten minutes for each parser)
	@$(PYTHON) -m tools.environments test
	@set -e; for script in tools/campaigns/[a-z]*.py; do echo "  $$ python $$script"; $(FULL)/python $$script; done

examples: ## Make the files of examples/data again, with the real torch
	@$(PYTHON) -m tools.environments test
	$(FULL)/python -m tools.make_examples

clean: ## Remove environments, caches and build results
	rm -rf .venv .venv-* .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
