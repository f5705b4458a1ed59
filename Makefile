# One command from nothing: every target that needs the environment sets it up first, once.
# Needs python3 (3.11 or newer, with venv), make and git; no compiler and no root.

PYTHON ?= python3
JOBS ?= 2
# `make lock UPGRADE=1` renews every version; without it only what pyproject.toml asks for changes.
UPGRADE ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements.lock

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
# Somebody else's environment must not leak into ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX

# A checkout that was moved or copied has an environment that points to the old place: set it up again.
$(shell [ ! -e $(READY) ] || [ "$$(cat $(READY))" = "$$PWD" ] || rm -f $(READY))

.DEFAULT_GOAL := help
.PHONY: help setup demo lab test test-all lint types imports pytest pytest-all \
	notebooks notebooks-check format lock clean distclean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z][a-z-]*:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

# ---------------------------------------------------------------------------------------------- set-up

setup: $(READY) ## create .venv with the locked versions (the other targets do it when needed)

# uv's own version and hashes are cut out of the lock, so that it is pinned in one place.
$(BIN)/uv: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'This needs Python 3.11 or newer as "$(PYTHON)". Name another: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo 'This Python cannot create virtual environments. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@echo 'setting up $(VENV) (once; again only when $(LOCK) or pyproject.toml changes)'
	@$(PYTHON) -m venv --clear $(VENV)
	@awk '/^[a-z]/ { on = /^uv==/ } on' $(LOCK) > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--require-hashes -r $(VENV)/uv.lock
	@touch $@

$(READY): $(BIN)/uv $(LOCK) pyproject.toml
	@rm -f $@
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --only-binary :all: --require-hashes $(LOCK) || { \
		echo 'uv could not install; trying pip, which is slower but reads pip.conf' >&2; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
			--require-hashes -r $(LOCK); }
	@$(BIN)/uv pip install --quiet --offline --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@printf '%s' "$$PWD" > $@

# ------------------------------------------------------------------------------------------------ use

demo: $(READY) ## run the demonstration; plots and report.html in out/demo
	$(BIN)/simlab demo --out out/demo

lab: $(READY) ## open JupyterLab on the course
	cd notebooks && ../$(BIN)/python -m jupyterlab $$([ "$$(id -u)" != 0 ] || echo --allow-root)

# ---------------------------------------------------------------------------------------------- check

test: lint types imports pytest notebooks-check ## check everything: lint, types, contracts, tests, notebooks

test-all: lint types imports pytest-all notebooks-check ## the same, with the tests marked slow

lint: $(READY) ## ruff: rules and format
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check

types: $(READY) ## mypy, strict
	$(BIN)/python -m mypy

imports: $(READY) ## import-linter: which module may import which
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-logo

pytest: $(READY) ## the tests that are not marked slow
	$(BIN)/python -m pytest -m 'not slow' -n $(JOBS)

pytest-all: $(READY) ## all tests
	$(BIN)/python -m pytest -n $(JOBS)

notebooks-check: $(READY) ## the learner notebooks are up to date, and both editions run
	$(BIN)/python notebooks/build.py --check
	$(BIN)/python notebooks/build.py --execute --jobs $(JOBS)

# ---------------------------------------------------------------------------------------------- renew

notebooks: $(READY) ## generate the learner notebooks from notebooks/src
	$(BIN)/python notebooks/build.py

format: $(READY) ## let ruff mend what it can
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

lock: $(BIN)/uv ## renew requirements.lock from pyproject.toml (UPGRADE=1: every version)
	@mkdir -p out
	@cp $(LOCK) out/new.lock
	$(BIN)/uv --no-config pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--only-binary :all: --generate-hashes --no-emit-index-url --no-header --all-extras --group setup \
		$(if $(UPGRADE),--upgrade) --output-file out/new.lock pyproject.toml
	@{ echo '# The tested versions of everything, with hashes, for Python 3.11 and newer on every platform.'; \
		echo '# Generated from pyproject.toml; do not edit. Renew with: make lock   (every version: make lock UPGRADE=1)'; \
		grep -v '^#' out/new.lock; } > out/$(LOCK)
	@cmp -s out/$(LOCK) $(LOCK) || cp out/$(LOCK) $(LOCK)
	@rm -f out/new.lock out/$(LOCK)

clean: ## remove what the commands wrote (out/ and caches), keep .venv
	rm -rf out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find scheduler simlab tests notebooks -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
