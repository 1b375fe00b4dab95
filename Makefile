# Everything happens in .venv, with plain venv and pip; pip's own configuration decides where packages come from.
# PYTHON=/path/to/python picks the interpreter, SCENARIO=name another job for `make run`.

PYTHON ?=
SCENARIO ?= kimi-k3-lora-128xh200
VENV := .venv
BIN := $(VENV)/bin
OUT := out/$(patsubst %.yaml,%,$(notdir $(SCENARIO)))
KERNELS := .venv-kernels
PIP := -m pip install --quiet --disable-pip-version-check
INSTALL := $(BIN)/python $(PIP) --constraint constraints.txt

.PHONY: help run test kernels check bench docs format clean

help:
	@echo "make run     install, simulate $(SCENARIO), say where its report is"
	@echo "make test    install, then lint, types, floors and tests"
	@echo "make kernels install PyTorch and Triton beside it, interpret the GPU kernels' tests on the CPU"
	@echo "make check   the whole gate: test, and nothing in the tree has changed by it"
	@echo "make bench   time the benchmarks"
	@echo "make docs    regenerate the pages and the schema that come from the code"
	@echo "make format  format the code and fix what can be fixed"
	@echo "make clean   remove .venv, caches and results"

run: $(VENV)/.installed
	$(BIN)/rackcast run $(SCENARIO) --out $(OUT)
	@echo
	@echo "Report: $(OUT)/report.html, one file to open or forward; charts and everything else are in $(OUT)/ too."
	@echo "More: $(BIN)/rackcast --help"

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses auto --dist loadfile

kernels: $(KERNELS)/.installed
	TRITON_INTERPRET=1 $(KERNELS)/bin/python -m pytest --noconftest tests/test_kernels_*.py

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
	rm -rf $(VENV) $(KERNELS) out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks

$(BIN)/pip:
	python=$$(tools/find-python $(PYTHON)) && "$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable .
	@touch $@

# What the tests need includes what a run needs.
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable ".[dev]"
	@touch $(VENV)/.installed $@

# Apart from the project's own: PyTorch and Triton take 2 GB, and a CUDA build of PyTorch 5 GB.
$(KERNELS)/.installed: kernels/requirements.txt
	python=$$(tools/find-python $(PYTHON)) && "$$python" -m venv $(KERNELS)
	$(KERNELS)/bin/python $(PIP) --requirement $<
	@touch $@
