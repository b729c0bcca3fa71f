# A fresh machine needs python3 (3.11 or newer), git and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help install demo test bench verify prove lint types arrows format dist

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z ]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with hocket (editable) and everything that the tests need

# Built without isolation, so that the build back end is the pinned one too.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("hocket needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; pyproject.toml and constraints.txt decide when again)"
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## run the demonstration: make demo ARGS="--async-depth 1"
	@$(BIN)/hocket demo $(ARGS)

test: $(STAMP) ## lint, types, arrows and all tests, then a table: make test TIERS="unit quality" REQUIRE_ALL=1
	@REQUIRE_ALL=$(REQUIRE_ALL) $(BIN)/python tests/tiers.py $(TIERS)

bench: $(STAMP) ## run every tests/bench/*.py briefly: make bench ARGS="--repeats 5 --tokens 8192"
	@for file in tests/bench/*.py; do $(BIN)/python $$file --repeats 2 --tokens 2048 $(ARGS) || exit 1; done

verify: $(STAMP) ## run every claim, then a table: make verify PROFILE=quick (standard, full) ARGS="--processes 4"
	@$(BIN)/hocket verify $(if $(PROFILE),--profile $(PROFILE)) $(ARGS)

prove: $(STAMP) ## run only what is proved without bound: Z3 and CrossHair on the functions that ship
	@$(BIN)/hocket verify --proofs $(ARGS)

lint types arrows: $(STAMP) ## one of the static checks
	@$(BIN)/python tests/tiers.py $@

format: $(STAMP) ## put the sources into the one format, and apply safe fixes
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

dist: $(STAMP) ## build wheel and sdist into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .
