PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[check]'
	touch $@

# Four methods on bundled images; results and report in acclimate-demo/.
demo: $(VENV)/.installed
	$(BIN)/acclimate demo

# The fast tests: under two minutes on two cores.
test: $(VENV)/.installed
	$(BIN)/pytest -n auto

# Everything that continuous integration runs; the report is tested in Chromium.
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
