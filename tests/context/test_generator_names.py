"""The same names of contexts everywhere: Python, command line, file, variables, ``evaluate``."""

from __future__ import annotations

import pytest
from fake_model import MODEL
from llama_index.core.llms import MockLLM

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.evaluation import Passage, Question, evaluate
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.context import registry
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.context.registry import resolve_generator
from llama_index_contextual.utils.errors import SettingError

NAMES = {
    "off": "off",
    "headings": "headings",
    "headers": "headings",
    "pattern": "pattern",
    "llm": "llm",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    return tmp_path


def options(name):
    return {"llm": MockLLM(), "cache": False} if name == "llm" else {}


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_python_accepts_the_name(name, kind, folder):
    assert ContextualNodePostprocessor(name, **options(name)).context == kind
    generator = resolve_generator(name, **options(name))
    assert ("off" if generator is None else generator.name) == kind
    given = {"llm": MockLLM()} if name == "llm" else {}
    with ContextualIndex.open(folder, context=name, **given) as index:
        assert index.settings.contexts.context == kind


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_the_settings_file_a_variable_and_the_command_line_accept_the_name(
    name, kind, folder, monkeypatch, run
):
    (folder / "contextual.toml").write_text(f'context = "{name}"\n', "utf-8")
    if name != "llm":  # a folder's own file may not choose what costs money
        assert load_configuration(folder)["context"] == kind
    (folder / "contextual.toml").unlink()
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CONTEXT", name)
    assert load_configuration(folder)["context"] == kind
    monkeypatch.delenv("LLAMA_INDEX_CONTEXTUAL_CONTEXT")
    model = ["--llm", "openai:m@http://127.0.0.1:9/v1"] if name == "llm" else []
    done = run("index", folder, "--context", name, *model, "--dry-run")
    assert done.returncode == 0, done.stderr


def test_evaluate_accepts_all_names(folder, fake_model):
    questions = [Question("How long does the gateway wait?", (Passage(path="page.md"),))]
    comparison = evaluate(
        folder, questions, contexts=NAMES, llm=fake_model.llm, embed_model="none", top_k=[1]
    )
    assert {row.name for row in comparison.rows} >= {"headings", "pattern", "llm"}
    assert "headers" not in {row.name for row in comparison.rows}
    assert fake_model.requests[0].body["model"] == MODEL


@pytest.mark.parametrize("nothing", ["off", None, False])
def test_off_is_off(nothing, folder):
    assert ContextualNodePostprocessor(nothing).generator is None
    assert resolve_generator(nothing) is None
    if nothing is not None:  # None says nothing there
        with ContextualIndex.open(folder, context=nothing) as index:
            assert index.settings.contexts.generator is None


def test_context_false_in_a_settings_file_means_off(folder):
    (folder / "contextual.toml").write_text("context = false\n", "utf-8")
    with ContextualIndex.open(folder) as index:
        index.refresh()
        assert [node.metadata.get("context") for node in index.nodes()] == [None]


@pytest.mark.parametrize("name", ["heading", "LLM", "", True, 3])
def test_an_unknown_name_is_refused_with_a_list_of_known_names(name, folder):
    names_that_exist = ", ".join(map(repr, registry.names()))
    for take in (ContextualNodePostprocessor, resolve_generator):
        with pytest.raises(SettingError, match=f"must be one of {names_that_exist}"):
            take(name)
    with pytest.raises(SettingError, match="must be one of"):
        evaluate(
            folder, [Question("?", (Passage(path="page.md"),))], contexts=[name], embed_model="none"
        )
