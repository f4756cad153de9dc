# `make demo` and `make test` set up .venv by themselves: all they need is make and Python 3.11 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
WORKERS ?= 2
PYTEST := -m pytest -n $(WORKERS) --dist worksteal --durations 25

MINUTES ?= 30
SHARE   ?= 1/1

# Another PyTorch, in an environment of its own: a release, or the name of a file of requirements/.
TORCH  ?=
VENVS  ?= .
ifdef TORCH
RELEASE   := $(or $(shell sed -n 's/^torch==//p' requirements/$(TORCH).txt 2>/dev/null),$(TORCH))
ON_VENV   := $(VENVS)/.venv-torch-$(RELEASE)
ON_PYTHON := $(ON_VENV)/bin/python
ON_STAMP  := $(ON_VENV)/installed
# What is arithmetic of our own, intent and accuracy, is the same with each. The examples of rules come first: in a
# build for CUDA, a process that has compiled something cannot be forked, and some of them cannot be sent to another.
ON_TESTS  := tests/check/test_rules.py tests/interpreter tests/test_torch_private.py tests/compose tests/graph tests/ruled \
  tests/chunked tests/node \
  $(patsubst %,tests/test_%.py,call call_tree discontinuous_ops dispatch double_backward function_class guards \
    hidden_dependence kernel_function modes nesting op packed_masks plan plans pytorch_page random_draws relaxed \
    restricted_plans saved_tensors sizes) \
  $(patsubst %,tests/stable/test_%.py,forms jet lookup tower) \
  $(addprefix tests/check/,rules controls test_controls.py contexts) \
  $(addprefix tests/check/derivative/test_,first_order.py second_order.py forward_mode.py) \
  --ignore tests/check/rules/test_accuracy.py
endif

.PHONY: help demo test test-all fuzz docs format clean

help:
	@echo "make demo      audit a few custom autograd functions (and write report.html), then make and train them"
	@echo "make test      formatting, lint, types and the tests, without those marked slow: 15 to 25 minutes on 2 cores"
	@echo "make test TORCH=2.15.0   what depends on PyTorch, with that release: 10 to 20 minutes, after a download of gigabytes;"
	@echo "               TORCH=newest and TORCH=oldest are those of requirements/"
	@echo "make test-all  the tests that 'make test' leaves out: 45 to 75 minutes; SHARE=2/5 is the second fifth of them"
	@echo "make fuzz      random formulas against PyTorch, for MINUTES=30, from a seed that it prints"
	@echo "make docs      these pages as a site, in site/: open site/index.html"
	@echo "make format    format the code and apply the linter's fixes"
	@echo "make clean     remove .venv, caches and build products"

demo: $(STAMP)
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/made_from_forward.py

ifdef TORCH
# The package is that of this checkout, also where the environment is shared with others (VENVS).
test: $(ON_STAMP)
	PYTHONPATH=$(CURDIR)/src $(ON_PYTHON) $(PYTEST) -m "not slow" --share $(SHARE) $(ON_TESTS)
else
test: $(STAMP)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python $(PYTEST) -m "not slow"
endif

test-all: $(STAMP)
	$(BIN)/python $(PYTEST) -m slow --share $(SHARE)

fuzz: $(STAMP)
	$(BIN)/python -m tests.adversary.fuzz --minutes $(MINUTES) $(FUZZ)

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

format: $(STAMP)
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

NEEDS_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Pullback needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make PYTHON=python3.12 …" >&2; exit 1; }

ON_INSTALL = $(ON_PYTHON) -m pip install -q --disable-pip-version-check -c $(ON_VENV)/constraints.txt
ON_REFUSED = { echo "PyTorch $(RELEASE) could not be installed:" \
  "$$(grep -q 'Retrying (' $(ON_VENV)/pip.log && echo 'the package index cannot be reached:')" \
  "$$(grep '^ERROR' $(ON_VENV)/pip.log | tail -n 1 | cut -c1-300) (all that pip said: $(ON_VENV)/pip.log)" >&2; exit 1; }

# The stamp is removed first and written last, so it stands for a finished install of these very files. Where
# it is missing, an earlier install was interrupted or there was none: start from an empty environment.
# hatchling goes in beforehand, pinned, because pip would otherwise build with its newest release.
$(STAMP): pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	@echo "Setting up $(VENV): PyTorch is large, so the first time takes minutes …"
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
	@echo "$(VENV) is ready."

# With the same packages, but torch itself, setuptools, of which some releases of PyTorch ask for an older one, and
# Triton, of which each asks for its own.
# Two seconds where all is there already, as in a new checkout with environments that were kept.
$(ON_STAMP): pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	@echo "Setting up $(ON_VENV) with PyTorch $(RELEASE): gigabytes, so the first time takes minutes …"
	@test -e $@ || $(PYTHON) -m venv --clear $(ON_VENV)
	@rm -f $@
	@grep -vE '^(torch|setuptools|triton)==' constraints.txt >$(ON_VENV)/constraints.txt
	@$(ON_INSTALL) torch==$(RELEASE) hatchling 2>$(ON_VENV)/pip.log || $(ON_REFUSED)
	@$(ON_INSTALL) --no-build-isolation -e '.[dev]' torch==$(RELEASE) 2>$(ON_VENV)/pip.log || $(ON_REFUSED)
	@touch $@
	@echo "$(ON_VENV) is ready."

clean:
	rm -rf $(VENV) .venv-torch-* build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
