# Everything here works on a machine that has only python3 and make.

PYTHON ?= python3
# TORCH=2.15.0 takes another torch, with the Triton that it asks for or TRITON=3.8.0, in an
# environment of its own: .venv keeps the versions of constraints.txt.
VENV ?= .venv$(TORCH:%=-torch-%)$(TRITON:%=-triton-%)
RUN := $(VENV)/bin/python
# -qq hides pip's warnings, which are about how this machine finds packages, but not its errors.
PIP := $(RUN) -m pip --disable-pip-version-check -qq
READY := $(VENV)/.ready
# Whatever the environment says: dozens of processes use the bytecode that one of them writes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-torch test-versions fuzz lint bench docs test-gpu test-jax test-wild clean
.PHONY: lint-ruff lint-types lint-imports lint-c lint-spelling

help:
	@echo "make demo      set up $(VENV) and run examples/demo.py"
	@echo "make test      run make lint and all tests, on every core"
	@echo "make test-torch TORCH=2.15.0   run the tests with another torch (TRITON=3.8.0: and Triton)"
	@echo "make test-versions TORCH=2.15.0   run what one of both torches wrote with the other"
	@echo "make fuzz      attack names and calls for SECONDS=$(SECONDS) per test; failures stay as cases"
	@echo "make lint      run ruff, mypy, import contracts, clang-format, codespell"
	@echo "make bench     measure what a call costs (benchmarks/call_overhead.py)"
	@echo "make docs      build the documentation into site/, with warnings as errors"
	@echo "make test-gpu  run the tests that need a GPU"
	@echo "make test-jax  run the tests that need JAX, which it installs"
	@echo "make test-wild record, serve and build packages from the wild, which it installs"
	@echo "make clean     remove $(VENV), caches and build products"
	@echo "PYTHON=... chooses the interpreter ($(PYTHON))"

setup: $(READY)

# setuptools goes first and isolation is off, so that pip builds with what is in the environment
# instead of collecting a second one. pip would compile 8,000 modules to bytecode, half of what
# set-up costs; what is imported, a quarter of them, is compiled by the import.
$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install "setuptools>=77"
	@sed -e '' $(if $(TORCH),-e '/^torch==/d' -e '/^triton==/d') constraints.txt > $(VENV)/constraints.txt
	@$(PIP) install --no-compile --no-build-isolation -c $(VENV)/constraints.txt \
		$(TORCH:%="torch==%") -e ".[dev]"
	@$(if $(TRITON),$(PIP) install --no-compile --no-deps "triton==$(TRITON)",:)
	@$(RUN) -c "import torch._inductor.compile_fx"
	@touch $@

demo: $(READY)
	$(RUN) examples/demo.py

# All at once: mypy alone takes as long as the others together.
lint: $(READY)
	@$(MAKE) --no-print-directory -j -Otarget lint-ruff lint-types lint-imports lint-c lint-spelling

lint-ruff:
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check --quiet .

lint-types:
	$(RUN) -m mypy

lint-imports:
	$(VENV)/bin/lint-imports --no-cache > $(VENV)/imports.log || { cat $(VENV)/imports.log; false; }

lint-c:
	find src tests examples -name '*.[ch]' -o -name '*.[ch]pp' | xargs $(VENV)/bin/clang-format --dry-run -Werror

lint-spelling:
	$(VENV)/bin/codespell

# A file stays in one process, because its tests share what they have built. One process more than
# there are cores, because tests wait for the programs that they start. Lint runs meanwhile, because
# most of it is mypy, on one core; what it finds it says at once. Plugins are named, because of those
# that it finds by itself pytest rewrites every module, opforge's 400 among them.
PLUGINS := --disable-plugin-autoload -p xdist -p _hypothesis_pytestplugin -p opforge.testing
PYTEST := $(RUN) -m pytest -q $(PLUGINS) -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

test: $(READY)
	@{ $(MAKE) --no-print-directory lint > $(VENV)/lint.log 2>&1 || { cat $(VENV)/lint.log; false; }; } & \
	lint=$$!; \
	$(PYTEST); tests=$$?; \
	wait $$lint || { echo "make lint failed; see above, or $(VENV)/lint.log"; exit 1; }; \
	exit $$tests

# Without lint, which judges the code with the versions of constraints.txt.
test-torch: $(READY)
	@test -n "$(TORCH)" || { echo "make test-torch needs a version: TORCH=2.15.0"; exit 2; }
	$(PYTEST)

# Each of the two environments uses what the other wrote.
test-versions: $(READY)
	@test -n "$(TORCH)" || { echo "make test-versions needs a version: TORCH=2.15.0"; exit 2; }
	@$(MAKE) --no-print-directory TORCH= TRITON= VENV=.venv .venv/.ready
	OPFORGE_OTHER_PYTHON=$(CURDIR)/$(RUN) .venv/bin/python -m pytest -q tests/serving/test_other_version.py
	OPFORGE_OTHER_PYTHON=$(CURDIR)/.venv/bin/python $(RUN) -m pytest -q tests/serving/test_other_version.py

# Each test attacks for so long, all of them at once.
SECONDS ?= 60

fuzz: $(READY)
	OPFORGE_FUZZ_SECONDS=$(SECONDS) $(RUN) -m pytest tests/fuzz -q -n auto

bench: $(READY)
	$(RUN) benchmarks/call_overhead.py

# Its packages are not the tests', so they are collected where the site is built.
$(VENV)/.docs: $(READY)
	@echo "adding the documentation's packages to $(VENV)"
	@$(PIP) install --no-build-isolation -c $(VENV)/constraints.txt -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

# Packages from the wild are not the tests', so they are collected where they are served.
$(VENV)/.wild: $(READY)
	@echo "adding packages from the wild to $(VENV)"
	@$(PIP) install --no-build-isolation -c $(VENV)/constraints.txt -e ".[wild]"
	@touch $@

test-wild: $(VENV)/.wild
	$(RUN) -m pytest -q tests/serving/test_wild.py tests/native/test_wild.py \
		tests/gpu/test_wild.py tests/gpu/test_wild_native.py

# JAX takes as long to install as everything else.
$(VENV)/.jax: $(READY)
	@echo "adding JAX to $(VENV)"
	@$(PIP) install --no-build-isolation -c $(VENV)/constraints.txt -e ".[jax]"
	@touch $@

test-jax: $(VENV)/.jax
	$(RUN) -m pytest -q tests/native/codegen/test_jax_ffi.py tests/native/test_config_ops.py \
		tests/shipping/test_shipped.py tests/docs/test_snippets.py -k "jax"

test-gpu: $(READY)
	$(RUN) -m pytest -q -n auto --dist loadfile tests/gpu

clean:
	rm -rf .venv .venv-* build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
