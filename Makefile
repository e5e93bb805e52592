# Each target sets up .venv by itself. `make PYTHON=python3.12 test` picks another interpreter.
PYTHON ?= python3
# `make DRAFTPROOF_NATIVE=optional demo` goes on without the CPU engine where there is no compiler.
export DRAFTPROOF_NATIVE ?= required
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := $(wildcard native/CMakeLists.txt native/src/*)
DEMO := 'The days of the week:\n1. Monday is the first day of the week.\n2. Tuesday is the second day of the week.\n3. Wednesday is the third day of the week.\n4.\n'

.PHONY: demo test fuzz lint format bench clean

# The same text twice: with speculation (what was drafted and kept is tinted), and plain.
demo: $(READY)
	@echo "--- with speculation"
	@printf $(DEMO) | $(BIN)/draftproof generate --max-tokens 96 -
	@echo "--- plain"
	@printf $(DEMO) | $(BIN)/draftproof generate --max-tokens 96 --drafter none -

# In as many processes as there are cores. Neighbours stay together: they share models.
test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Damaged GGUF files, under AddressSanitizer and UndefinedBehaviorSanitizer.
fuzz: $(READY)
	$(BIN)/cmake -S native -B build/fuzz -DDRAFTPROOF_PYTHON=OFF -DDRAFTPROOF_TOOLS=ON \
		-DDRAFTPROOF_SANITIZE=address,undefined
	$(BIN)/cmake --build build/fuzz --target fuzz_gguf
	build/fuzz/tools/fuzz_gguf --runs 100000

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What the compiled module offers, for the type checker.
stubs: $(READY)
	$(BIN)/python -m nanobind.stubgen -q -m draftproof._native -o src/draftproof/_native.pyi

bench: $(READY)
	$(BIN)/draftproof bench curve --target smollm2-135m
	$(BIN)/draftproof bench speed --target smollm2-135m --limit 4 --max-tokens 64 --modes plain,lookup,auto

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# Built outside pip's isolation, so that a changed source compiles alone.
$(READY): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -f $(READY) || $(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet cmake nanobind ninja scikit-build-core
	$(BIN)/python -m pip install --quiet --no-build-isolation --check-build-dependencies \
		--editable ".[torch,dev]"
	touch $(READY)
