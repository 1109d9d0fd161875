"""What the README says is true: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from llama_index.core import Document, Settings
from llama_index.core.ingestion import IngestionPipeline

import llama_index_contextual
from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser, LocalEmbedding
from llama_index_contextual.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_every_public_name_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    missing = [name for name in llama_index_contextual.__all__ if f"::: llama_index_contextual.{name}\n" not in page]
    assert not missing


def test_every_command_is_documented_and_every_documented_command_exists():
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    documents = "\n".join(page.read_text("utf-8") for page in PAGES)
    used = set(re.findall(r"llama-index-contextual ([a-z]+)\b", documents))
    assert used <= names, "a page names a command that does not exist"
    assert names <= used, "a command is documented nowhere"


def test_a_generator_of_your_own_as_documented():
    *_, code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "contexts.md").read_text("utf-8"), flags=re.DOTALL)
    names = {"ContextualNodePostprocessor": ContextualNodePostprocessor}
    exec(compile(code, "contexts.md", "exec"), names)  # noqa: S102  our own page
    pipeline = IngestionPipeline(transformations=[HeadingAwareMarkdownNodeParser(), names["step"]])
    [node] = pipeline.run(documents=[Document(text="# Notes", metadata={"department": "Sales"})])
    assert node.metadata["context"] == "Written by Sales."


PYTHON = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
START = (ROOT / "docs" / "index.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_import_from_this_package_exists(page):
    for code in PYTHON.findall(page.read_text("utf-8")):
        body = ast.parse(code, feature_version=(3, 10)).body  # raises where an example is not Python
        ours = [
            one for one in body if isinstance(one, ast.ImportFrom) and one.module.startswith("llama_index_contextual")
        ]
        for statement in ours:
            module = import_module(statement.module)
            assert all(hasattr(module, alias.name) for alias in statement.names), ast.unparse(statement)


@pytest.mark.parametrize("code", [*PYTHON.findall(README), *PYTHON.findall(START)])
def test_the_code_of_readme_and_start_page_runs(code, tmp_path, monkeypatch):
    for name in ("docs", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.md").write_text("# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "_embed_model", LocalEmbedding())
    prelude = "from llama_index_contextual import ContextualNodePostprocessor\n"
    exec(compile(prelude + code, "README.md", "exec"), {})  # noqa: S102  our own README
