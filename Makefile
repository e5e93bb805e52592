# Each target sets up .venv by itself. `make PYTHON=python3.12 test` picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint format bench clean

demo: $(READY)
	$(BIN)/draftproof generate --max-tokens 96 --temperature 0 \
	  "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday. The days of the week are"

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/draftproof bench curve --target smollm2-135m
	$(BIN)/draftproof bench speed --target smollm2-135m --limit 4 --max-tokens 64 --modes plain,lookup,auto

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[torch,dev]"
	touch $(READY)
