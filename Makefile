# `make demo` and `make test` set up .venv by themselves: all they need is make and Python 3.11 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 25

MINUTES ?= 30

.PHONY: help demo test test-all fuzz docs format clean

help:
	@echo "make demo      audit a few custom autograd functions (and write report.html), then make and train them"
	@echo "make test      formatting, lint, types and the tests, without those marked slow: 10 minutes on 2 cores"
	@echo "make test-all  the tests that 'make test' leaves out: 45 minutes; CI runs both"
	@echo "make fuzz      random formulas against PyTorch, for MINUTES=30, from a seed that it prints"
	@echo "make docs      these pages as a site, in site/: open site/index.html"
	@echo "make format    format the code and mend what the linter can"
	@echo "make clean     remove .venv, caches and build products"

demo: $(STAMP)
	@$(BIN)/python examples/demo.py
	@$(BIN)/python examples/made_from_forward.py

test: $(STAMP)
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(PYTEST) -m "not slow"

test-all: $(STAMP)
	$(PYTEST) -m slow

fuzz: $(STAMP)
	$(BIN)/python -m tests.adversary.fuzz --minutes $(MINUTES) $(FUZZ)

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

format: $(STAMP)
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# The stamp is removed first and written last, so it stands for a finished install of these very files. Where
# it is missing, an earlier install was interrupted or there was none: start from an empty environment.
# hatchling goes in beforehand, pinned, because pip would otherwise build with its newest release.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Pullback needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Setting up $(VENV): PyTorch is large, so the first time takes minutes …"
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
	@echo "$(VENV) is ready."

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
