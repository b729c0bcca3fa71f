# A fresh machine needs python3 (3.11 or newer), git and make. Everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NPU_BIN := .venv-npu/bin
NPU_STAMP := .venv-npu/.installed
FAKE_CANN := .venv-npu/fake_cann

.PHONY: help install npu-env ascend-compile demo test bench verify prove mutate-spec mutate-kernel mutate lint types arrows t0 t1 t2 format dist

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with hocket (editable) and everything that the tests need

# Built without isolation, so that the build back end is the pinned one too.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("hocket needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; pyproject.toml and constraints.txt decide when again)"
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

npu-env: $(FAKE_CANN)/libascendcl.so ## make .venv-npu with torch_npu, for the tests of the NPU path (no NPU needed)

# An environment of its own: torch_npu, once installed, breaks a plain `import torch` where CANN is missing.
$(NPU_STAMP): pyproject.toml constraints.txt constraints-npu.txt
	@test -x $(NPU_BIN)/python || $(PYTHON) -m venv .venv-npu
	@echo "installing into .venv-npu (once; pyproject.toml, constraints.txt and constraints-npu.txt decide when again)"
	@$(NPU_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-npu.txt \
		hatchling editables
	@$(NPU_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-npu.txt \
		--no-build-isolation --editable '.[npu]' hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

$(FAKE_CANN)/libascendcl.so: $(NPU_STAMP) tests/npu/fake_cann/build.py tests/npu/fake_cann/fake_acl.c
	@$(NPU_BIN)/python tests/npu/fake_cann/build.py $(FAKE_CANN)

# Triton for Ascend installs as `triton`, beside no other; it wants an older NumPy than constraints.txt has.
TRITON_BIN := .venv-npu-triton/bin
.venv-npu-triton/.installed: constraints-npu-triton.txt
	@test -x $(TRITON_BIN)/python || $(PYTHON) -m venv .venv-npu-triton
	@echo "installing into .venv-npu-triton (once; constraints-npu-triton.txt decides when again)"
	@$(TRITON_BIN)/python -m pip install --quiet --disable-pip-version-check --requirement constraints-npu-triton.txt
	@touch $@

ascend-compile: .venv-npu-triton/.installed ## compile the Triton kernels for an Ascend 910B, as far as it goes without CANN
	@PYTHONPATH=impl:spec:kernels $(TRITON_BIN)/python -m pytest --quiet tests/npu/t3
	@PYTHONPATH=impl:spec:kernels $(TRITON_BIN)/python -m pytest --quiet tests/npu/t0/test_triton.py

demo: $(STAMP) ## run the demonstration: make demo ARGS="--async-depth 1"
	@$(BIN)/hocket demo $(ARGS)

test: $(STAMP) ## lint, types, arrows and all tests, then a table: make test TIERS="unit quality" REQUIRE_ALL=1
	@REQUIRE_ALL=$(REQUIRE_ALL) $(BIN)/python tests/tiers.py $(TIERS)

bench: $(STAMP) ## run every tests/bench/*.py briefly: make bench ARGS="--repeats 5 --tokens 8192"
	@for file in tests/bench/*.py; do $(BIN)/python $$file --repeats 2 --tokens 2048 $(ARGS) || exit 1; done

verify: $(STAMP) ## run every claim, then a table: make verify PROFILE=quick (standard, full) ARGS="--processes 4"
	@$(BIN)/hocket verify $(if $(PROFILE),--profile $(PROFILE)) $(ARGS)

prove: $(STAMP) ## run only the proofs on the functions that ship: Z3 and CrossHair
	@$(BIN)/hocket verify --proofs $(ARGS)

mutate-spec: $(STAMP) ## weaken the specification in every way; what no test sees must be explained: ARGS="rules walk"
	@$(BIN)/python tests/mutation/mutate_spec.py $(ARGS)

mutate-kernel: $(STAMP) ## change the decisions place by place; the theorems alone must notice (minutes)
	@$(BIN)/python -m hocket_proofs.mutate kernel --fresh $(ARGS)

mutate: $(STAMP) ## the same for scheduler, pools, nouns and validator, by tests and lock-step (half an hour, goes on)
	@$(BIN)/python -m hocket_proofs.mutate product $(ARGS)

lint types arrows: $(STAMP) ## one of the static checks
	@$(BIN)/python tests/tiers.py $@

t0 t1 t2: $(STAMP) ## one of the tiers of the NPU path; none needs an NPU
	@$(BIN)/python tests/tiers.py $@

format: $(STAMP) ## put the sources into the one format, and apply safe fixes
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

dist: $(STAMP) ## build wheel and sdist into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .
