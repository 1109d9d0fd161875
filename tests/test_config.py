"""One configuration: its places, their order, and errors that name file, line and key."""

from __future__ import annotations

import warnings

import pytest

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.config import SETTINGS, Configuration, load_configuration
from llama_index_contextual.app.config.places import completed
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.context.run import LLMSettings
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.keyword.lexicon import DEFAULT_LANGUAGES, OWN_LANGUAGES
from llama_index_contextual.memory import MemoryContext, MemorySettings
from llama_index_contextual.retrieval import RecencyPostprocessor

FILE = """\
# What this folder is.
context = "headers"

[files]
include = ["*.md", "*.py"]
hidden = true

[chunks]
chunk_size = 200

[context_options]
llm = "ollama:qwen3:0.6b"

[memory]
include_recency = false

[descriptions]
"api/" = "REST reference  of the billing service"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "contextual.toml").write_text(FILE, "utf-8")
    return tmp_path


def test_a_folder_without_a_file_says_nothing(tmp_path):
    found = load_configuration(tmp_path)
    assert found == Configuration()
    assert (found.origins, found.file, found.files.explicit()) == ({}, None, {})


def test_the_file_of_the_folder_is_read_with_the_line_of_every_key(folder):
    found = load_configuration(folder, file=folder / "contextual.toml")
    assert found.files.explicit() == {"include": ("*.md", "*.py"), "hidden": True}
    assert found.chunks.explicit() == {"chunk_size": 200}
    assert found.context == "headings", "headers is another name of it"
    assert found.context_options.explicit() == {"llm": "ollama:qwen3:0.6b"}
    assert found.memory.explicit() == {"include_recency": False}
    assert found.descriptions == {"api/": "REST reference of the billing service"}
    lines = {key: where.removeprefix(f"{folder}/") for key, where in found.origins.items()}
    assert lines == {
        "context": "contextual.toml:2",
        "files.include": "contextual.toml:5",
        "files.hidden": "contextual.toml:6",
        "chunks.chunk_size": "contextual.toml:9",
        "context_options.llm": "contextual.toml:12",
        "memory.include_recency": "contextual.toml:15",
        "descriptions": "contextual.toml:17",
    }


def test_options_come_before_the_environment_and_that_before_the_file(folder, monkeypatch):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE", "300")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_FILES__INCLUDE", "*.txt, *.rst")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL", "ollama:nomic-embed-text")
    file = folder / "contextual.toml"
    found = load_configuration(folder, file=file, options={"files.include": ["*.go"], "files.exclude": None})
    assert found.chunks.chunk_size == 300
    assert found.origins["chunks.chunk_size"] == "LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE"
    assert (found.files.include, found.origins["files.include"]) == (("*.go",), "--include")
    assert found.get("files.exclude") is None
    assert found.embed_model == "ollama:nomic-embed-text"
    assert load_configuration(folder, file=file).files.include == ("*.txt", "*.rst")


def test_a_table_of_pyproject_toml_is_read_and_another_project_s_is_not(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n', "utf-8")
    assert load_configuration(tmp_path).file is None
    project.write_text('[project]\nname = "x"\n\n[tool.llama-index-contextual.chunks]\nchunk_size = 99\n', "utf-8")
    found = load_configuration(tmp_path)
    assert found.chunks.chunk_size == 99
    assert found.origins == {"chunks.chunk_size": f"{project}:5"}


def test_a_file_can_be_named_and_a_prompt_stands_in_a_file_beside_it(tmp_path):
    (tmp_path / "prompt.txt").write_text("{document}\n\n{chunks}", "utf-8")
    other = tmp_path / "other.toml"
    other.write_text('[context_options]\nprompt = "prompt.txt"\n', "utf-8")
    assert load_configuration(tmp_path, file=other).context_options.prompt == "{document}\n\n{chunks}"
    with pytest.raises(SettingError, match=r"none\.toml is no file\. Cure: .*config --init"):
        load_configuration(tmp_path, file=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[chunks]\nchunk_size = 0\n",
            r"contextual\.toml:2: chunks\.chunk_size=0 cannot work\. Cure: .*greater than or equal to 1",
        ),
        (
            "[chunks]\nembed_model = 'e5'\n",
            r"contextual\.toml:2: chunks\.embed_model is not known\. Cure: use embed_model, above all tables\.",
        ),
        (
            "[chunks]\n\nsise = 3\n",
            r"contextual\.toml:3: chunks\.sise is not known\. Cure: use one of chunk_size, chunk_o",
        ),
        (
            "[chuncks]\nsize = 3\n",
            r"contextual\.toml:2: chuncks\.size is not known\. Cure: use one of context, .*, files, documents, chunks,",
        ),
        ("[chuncks]\nchunk_size = 3\n", r":2: chuncks\.chunk_size is not known\. Cure: use chunks\.chunk_size\."),
        ('context = "magic"\n', r"contextual\.toml:1: context='magic' .*'off', 'headings'"),
        (
            '[context_options]\nmodell = "x"\n',
            r"contextual\.toml:2: context_options\.modell is not known\. Cure: use one of llm, prompt",
        ),
        ("[files]\ninclude = [1]\n", r"contextual\.toml:2: files\.include=1 cannot work"),
        (f'[descriptions]\n"api/" = "{"x" * 301}"\n', r"contextual\.toml:1: descriptions=.*'api/' is longer than 300"),
        ("chunks = 3\n", r"contextual\.toml:1: chunks=3 cannot work\. Cure: make it a table"),
        ("[chunks\nsize = 3\n", r"contextual\.toml:1 is not TOML"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path, text, message):
    (tmp_path / "contextual.toml").write_text(text, "utf-8")
    with pytest.raises(SettingError, match=message):
        load_configuration(tmp_path)


def test_an_error_names_the_option_or_the_variable(tmp_path, monkeypatch):
    with pytest.raises(SettingError, match=r"^--chunk-size=0 cannot work\. Cure: "):
        load_configuration(tmp_path, options={"chunks.chunk_size": 0})
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CONTEXT", "magic")
    with pytest.raises(SettingError, match=r"^LLAMA_INDEX_CONTEXTUAL_CONTEXT='magic' cannot work"):
        load_configuration(tmp_path)


def test_a_misspelt_variable_is_an_error_and_one_that_is_no_setting_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_LLM_CREDENTIALS", "user:password")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_FILES", '{"hidden": true}')
    assert load_configuration(tmp_path).files.explicit() == {"hidden": True}
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CHUNCKS__SIZE", "3")
    with pytest.raises(SettingError, match=r"^LLAMA_INDEX_CONTEXTUAL_CHUNCKS__SIZE is not known\. Cure: use one of"):
        load_configuration(tmp_path)


def defaults():
    parser = HeadingAwareMarkdownNodeParser.model_fields
    return {
        "files": dict(FileRules()),
        "chunks": {key: info.default for key, info in parser.items()},
        "context_options": {key: info.default for key, info in LLMSettings.model_fields.items()},
        "retrieval": {"half_life_days": RecencyPostprocessor().half_life_days},
    }


def test_every_key_has_its_name_and_its_default_in_python():
    """A key that Python does not take, or a default that is not the real one, would be a lie of the reference."""
    of = defaults()
    checked = 0
    for key, setting in SETTINGS.items():
        section = setting.table
        if section not in of or (section == "retrieval" and setting.name not in of[section]):
            continue
        assert setting.name in of[section], key
        if not setting.computed:
            assert of[section][setting.name] == setting.default, key
            checked += 1
    assert checked > 8


def test_each_setting_says_its_meaning_in_one_line():
    meanings = [setting.info.description for setting in SETTINGS.values()]
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in meanings)


def test_languages_are_those_that_the_package_has():
    languages = SETTINGS["memory.languages"]
    assert languages.default == DEFAULT_LANGUAGES
    assert languages.safe == (*DEFAULT_LANGUAGES, *OWN_LANGUAGES)


class TestAnIndex:
    """What ``ContextualIndex.open`` makes of it."""

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
        (tmp_path / "tool.py").write_text("def wait() -> int:\n    return 60\n", "utf-8")
        return tmp_path

    def say(self, folder, text):
        (folder / "contextual.toml").write_text(text, "utf-8")
        return folder

    def test_obeys_the_file(self, folder):
        self.say(folder, 'context = "off"\n[files]\ninclude = ["*.py"]\n[chunks]\nchunk_size = 100\n')
        with ContextualIndex.open(folder) as index:
            assert index.settings.files == FileRules(include=("*.py",))
            parser = index.settings.pipeline.parser
            assert (parser.chunk_size, parser.chunk_overlap, parser.min_chunk_size) == (100, 20, 12)
            assert index.settings.pipeline.contexts.context == "off"

    def test_arguments_come_first(self, folder, users_own):
        self.say(folder, 'context = "off"\n[files]\ninclude = ["*.py"]\n[context_options]\nllm = "ollama:x"\n')
        users_own(folder)
        with ContextualIndex.open(folder, context="headings", files=FileRules(include=("*.md",))) as index:
            assert index.settings.files.include == ("*.md",)
            assert index.settings.pipeline.contexts.context == "headings", "and the model waits for its mode"

    def test_gives_the_language_model_its_settings(self, folder, users_own):
        self.say(
            folder,
            'context = "llm"\n[context_options]\nllm = "ollama:x"\nbatch_size = 3\nfallback_only = true\n'
            'prompt = "{document} says of {chunks}"\nchunk_timeout = 7\n',
        )
        users_own(folder)
        with ContextualIndex.open(folder, batch_size=4) as index:
            llm = index.settings.pipeline.contexts.generator
            assert (llm.name.partition("+")[0], llm.settings.batch_size) == ("llm:x", 4)
            assert (llm.settings.fallback_only, llm.settings.chunk_timeout) == (True, 7)
            assert "says of" in llm.get_prompts()["context_prompt"].format(document="d", chunks="c", count=1)

    def test_pattern_reads_source_code_where_nobody_names_the_files(self, folder):
        with ContextualIndex.open(folder, context="pattern") as index:
            assert index.refresh().added == ["page.md", "tool.py"]
        self.say(folder, '[files]\ninclude = ["*.md"]\n')
        with ContextualIndex.open(folder, context="pattern") as index:
            assert index.refresh().deleted == ["tool.py"]

    def test_what_the_file_says_comes_before_what_the_index_was_made_with(self, folder):
        with ContextualIndex.open(folder, context="off") as index:
            index.refresh()
        with ContextualIndex.open(folder) as index:
            assert index.settings.pipeline.contexts.context == "off"
        self.say(folder, 'context = "headings"\n')
        with ContextualIndex.open(folder) as index:
            assert index.settings.pipeline.contexts.context == "headings"

    def test_memory_and_retrievers_obey_the_file_in_python_too(self, folder):
        self.say(folder, "[memory]\nmax_results = 2\n[retrieval]\ntop_k = 3\nrecency = true\nhalf_life_days = 7\n")
        with ContextualIndex.open(folder) as index:
            index.refresh()
            assert MemoryContext(index).settings == MemorySettings(max_results=2)
            assert MemoryContext(index, max_results=5).settings.max_results == 5
            retriever = index.as_retriever()
            assert retriever.similarity_top_k == 3
            assert [one.half_life_days for one in retriever.node_postprocessors] == [7]
            assert index.as_retriever(4, recency=False).node_postprocessors == []

    def test_a_misspelt_argument_of_a_retriever_is_named_with_those_that_there_are(self, folder):
        with ContextualIndex.open(folder) as index:
            index.refresh()
            with pytest.raises(SettingError, match=r"as_retriever does not take min_scor\. Cure: .* min_score"):
                index.as_retriever(min_scor=0.1)
            with pytest.raises(SettingError, match=r"^recency='x' cannot work\. Cure: give a finite number"):
                index.as_retriever(recency="x")

    def test_no_metadata_key_is_both_kept_and_left_out(self, folder):
        with pytest.raises(
            SettingError, match=r"keep_keys=\('author', 'tags'\) and leave_out_keys both name \['tags'\]"
        ):
            ContextualIndex.open(folder, keep_keys=["author", "tags"], leave_out_keys=["tags"])


def test_what_an_index_remembers_and_nothing_knows_is_named(tmp_path):
    settings = load_configuration(tmp_path)
    with pytest.warns(ContextualWarning, match=r"remembers files\.ignore, .* Cure: say what it meant again"):
        remembered = completed(settings, {"files.ignore": ["drafts/"], "files.hidden": True})
    assert remembered.get("files.hidden") is True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        completed(settings, {"context": "pattern", "context_options.beside": None})
