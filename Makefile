# Every target makes the virtual environment it needs. Nothing is assumed but Python >= 3.11, make and pip's package index.
PYTHON ?= python3
VENV   ?= .venv
LOWEST ?= .venv-lowest
BIN    := $(VENV)/bin
Q      ?= How many years passed between the opening of the Rideau Canal and the opening of the Panama Canal?
ARGS   ?=
COVERED := 94

.PHONY: help run test coverage test-lowest test-models check docs bench bench-models bench-peers bench-conformance format clean
.DEFAULT_GOAL := help

help:
	@echo "make run Q=\"…\"     answer a question with the embedded model over examples/documents"
	@echo "make test          run the tests"
	@echo "make coverage      run the tests and count the lines that they execute in their own processes"
	@echo "make test-lowest   run the tests with the lowest versions of all dependencies"
	@echo "make test-models   run the tests that use the embedded model (slow)"
	@echo "make check         lint, types, layers, links of the documentation"
	@echo "make docs          build the documentation site into site/"
	@echo "make bench         run the benchmarks, one summary line each"
	@echo "make bench-models  measure the embedded model on 50 questions (slow)"
	@echo "make bench-peers   the embedded model's weights in Closeout and in four other frameworks (slow)"
	@echo "make bench-conformance  the MCP client and server in the protocol's official conformance suite (needs npm)"

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Closeout needs Python 3.11 or newer: make run PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Closeout into $(VENV) …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Closeout needs Python 3.11 or newer: make test PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the development tools into $(VENV) …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,clients]'
	@touch $@ $(VENV)/.run

$(VENV)/.docs: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# Made from scratch each time: what an earlier set of bounds installed must not stay.
$(LOWEST)/.dev: pyproject.toml .ci/lowest.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Closeout needs Python 3.11 or newer: make test-lowest PYTHON=python3.12")'
	@$(PYTHON) -m venv --clear $(LOWEST)
	@echo "Installing the lowest versions into $(LOWEST) …" >&2
	@$(LOWEST)/bin/python .ci/lowest.py > $(LOWEST)/constraints.txt
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt -e '.[all,dev]' || \
		{ echo "The lowest versions in pyproject.toml cannot be installed together (see above). Raise the bound that pip names." >&2; exit 1; }
	@touch $@

run: $(VENV)/.run
	@$(BIN)/closeout run "$(Q)" -m local --docs examples/documents $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

# What the processes that tests start execute is not counted.
coverage: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 3 --dist worksteal --cov=closeout --cov-report= --cov-fail-under=$(COVERED) $(ARGS)

test-lowest: $(LOWEST)/.dev
	@$(LOWEST)/bin/python -m pytest -n 3 --dist worksteal $(ARGS)

test-models: $(VENV)/.dev
	@$(BIN)/python -m pytest -m models -n 0 $(ARGS)

check: $(VENV)/.dev docs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests/public_types.py
	@$(BIN)/pyright --pythonpath $(BIN)/python tests/public_types.py
	@$(BIN)/lint-imports --no-cache

docs: $(VENV)/.docs
	@$(BIN)/zensical build --strict --clean
	@echo "Open site/index.html; for the search, run python -m http.server -d site and open http://localhost:8000"

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	@for b in bench/*.py; do case $$b in bench/_*|bench/local_model.py|bench/local_ablation.py|bench/weak_models.py|bench/forge_scenarios.py|bench/conformance.py) ;; *) echo "== $$b"; $(BIN)/python $$b || exit 1 ;; esac; done

bench-models: $(VENV)/.dev
	@$(BIN)/python bench/local_model.py $(ARGS)

bench-peers: $(VENV)/.dev
	@$(BIN)/python bench/weak_models.py $(ARGS)

bench-conformance: $(VENV)/.dev
	@$(BIN)/python bench/conformance.py $(ARGS)

clean:
	rm -rf $(VENV) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist site
