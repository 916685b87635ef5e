PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test check bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[check]'
	touch $@

# The fast tests: under two minutes on two cores.
test: $(VENV)/.installed
	$(BIN)/pytest -n auto

# Everything that continuous integration runs.
check: test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --slow -m slow

# Speed and memory on this machine; docs/performance.md explains the tables.
bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
