"""A new context generator needs one module, which all lists of names include."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.cli import app
from llama_index_contextual.app.evaluation import Passage, Question, evaluate
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.app.settings.registry import SETTINGS
from llama_index_contextual.context import generators, registry
from llama_index_contextual.utils.errors import SettingError

GREETING = """
from llama_index_contextual.context.base import ContextGenerator

class GreetingContextGenerator(ContextGenerator):
    name = "greeting"
    description = "a greeting"

    def __init__(self, word="Hello"):
        self.word = word

    def generate(self, nodes, document):
        return [f"{self.word} from {document.path}." for _ in nodes]
"""


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    """Return a folder of generators with one more module."""
    (tmp_path / "greeting.py").write_text(GREETING)
    monkeypatch.setattr(generators, "__path__", [*generators.__path__, str(tmp_path)])
    yield
    sys.modules.pop(f"{generators.__name__}.greeting", None)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n")
    return folder


def test_the_names_are_the_module_names():
    assert {"off", "headings", "llm", "pattern"} <= {*registry.names()}
    for name in registry.names()[1:]:
        kind = registry.generator_class(name)
        assert kind.name == name
        assert kind.description
    assert registry.is_free("headings")
    assert not registry.is_free("llm")


@pytest.mark.parametrize(
    ("value", "name"), [(None, "off"), (False, "off"), ("headers", "headings"), ("llm", "llm")]
)
def test_a_context_has_other_names(value, name):
    assert registry.context_name(value) == name
    assert registry.is_free(value) == (name != "llm")


@pytest.mark.parametrize("value", ["magic", True, 5])
def test_a_context_that_does_not_exist_is_not_free(value):
    assert not registry.is_free(value)
    with pytest.raises(SettingError, match="`context` must be one of"):
        registry.context_name(value)


@pytest.mark.usefixtures("greeting")
def test_python_accepts_a_new_name_and_its_options(folder):
    assert "greeting" in registry.names()
    assert ContextualNodePostprocessor("greeting", word="Hi").generator.word == "Hi"
    with pytest.raises(SettingError, match="does not take volume"):
        ContextualNodePostprocessor("greeting", volume=9)
    with ContextualIndex.open(folder, context="greeting", embed_model="none") as index:
        index.refresh()
        assert [node.metadata["context"] for node in index.nodes()] == ["Hello from page.md."]


@pytest.mark.usefixtures("greeting")
def test_settings_of_a_folder_accept_a_free_generator(folder, monkeypatch):
    (folder / "contextual.toml").write_text('context = "greeting"\n')
    assert load_configuration(folder)["context"] == "greeting"
    (folder / "contextual.toml").unlink()
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CONTEXT", "greeting")
    assert load_configuration(folder)["context"] == "greeting"


@pytest.mark.usefixtures("greeting")
def test_the_command_line_accepts_a_new_name(folder):
    arguments = ["index", str(folder), "--context", "greeting", "--embed-model", "none"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    with ContextualIndex.open(folder) as index:
        assert index.nodes()[0].metadata["context"] == "Hello from page.md."


@pytest.mark.usefixtures("greeting")
def test_an_evaluation_compares_it_with_the_others(folder):
    questions = [Question("How long does the gateway wait?", (Passage(path="page.md"),))]
    result = evaluate(folder, questions, embed_model="none", top_k=[1])
    free_names = [name for name in registry.names() if registry.is_free(name) and name != "off"]
    assert "greeting" in free_names
    names = ["text alone", "LlamaIndex metadata", *free_names]
    assert [row.name for row in result.rows] == names


def test_settings_and_command_line_list_the_names():
    assert all(f"`{name}`" in SETTINGS["context"].meaning for name in registry.names())
    help_text = CliRunner().invoke(app, ["evaluate", "--help"]).output
    assert all(name in help_text for name in registry.names())


@pytest.mark.usefixtures("greeting")
def test_the_documentation_lists_a_new_name():
    hooks = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "hooks.py"))
    assert '| `"greeting"` | a greeting | none |' in hooks["table_of_contexts"]()


@pytest.mark.process
def test_the_names_are_known_without_llama_index():
    code = (
        "import sys; from llama_index_contextual.context import registry; "
        "assert registry.is_free('headings') and registry.is_free('pattern'); "
        "sys.exit('llama_index.core' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
