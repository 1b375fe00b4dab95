# Everything happens in .venv, with plain venv and pip; pip's own configuration decides where packages come from.
# PYTHON=/path/to/python picks the interpreter, SCENARIO=name another job for `make run`.

PYTHON ?=
SCENARIO ?= kimi-k3-lora-128xh200
VENV := .venv
BIN := $(VENV)/bin
OUT := out/$(patsubst %.yaml,%,$(notdir $(SCENARIO)))
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help run test check bench docs format clean

help:
	@echo "make run     install, simulate $(SCENARIO), say where the charts are"
	@echo "make test    install, then lint, types, floors and tests"
	@echo "make check   the whole gate: test, and nothing in the tree has changed by it"
	@echo "make bench   time the benchmarks"
	@echo "make docs    regenerate the pages and the schema that come from the code"
	@echo "make format  format the code and fix what can be fixed"
	@echo "make clean   remove .venv, caches and results"

run: $(VENV)/.installed
	$(BIN)/rackcast run $(SCENARIO) --out $(OUT)
	@echo
	@echo "Charts: $(OUT)/timeline.png and $(OUT)/memory.png; everything else is in $(OUT)/ too."
	@echo "More: $(BIN)/rackcast --help"

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

check: $(VENV)/.installed-dev
	tools/leaves-tree-alone $(MAKE) --no-print-directory docs test

bench: $(VENV)/.installed-dev
	$(BIN)/pytest --override-ini addopts=--strict-markers --benchmark-only

docs: $(VENV)/.installed-dev
	$(BIN)/rackcast schema > docs/scenario.schema.json
	$(BIN)/python tools/scenario_fields.py > docs/scenario.md

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks

$(BIN)/pip:
	python=$$(tools/find-python $(PYTHON)) && "$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable .
	@touch $@

# What the tests need includes what a run needs.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable ".[dev]"
	@touch $(VENV)/.installed $@
