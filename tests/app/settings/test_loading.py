"""One configuration: its places, their order, and errors that name the place and the key."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.settings.loading import (
    USER_FILE,
    is_harmless,
    load_configuration,
    user_folder,
)
from llama_index_contextual.app.settings.registry import SETTINGS, Configuration, Options
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.memory.settings import MemorySettings
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import SettingError

FILE = """\
# What this folder is.
context = "off"

[files]
include = ["*.md", "*.py"]

[chunks]
chunk_size = 200

[memory]
include_recency = false

[descriptions]
"api/" = "REST reference  of the billing service"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "contextual.toml").write_text(FILE, "utf-8")
    return tmp_path


def test_a_folder_without_a_file_sets_nothing(tmp_path):
    assert load_configuration(tmp_path) == Configuration()


def test_the_file_of_the_folder_is_read(folder):
    configuration = load_configuration(folder)
    assert configuration.table("files") == {"include": ("*.md", "*.py")}
    assert (
        configuration["chunks.chunk_size"],
        configuration["context"],
        configuration["memory.include_recency"],
    ) == (
        200,
        "off",
        False,
    )
    assert configuration["descriptions"] == {"api/": "REST reference of the billing service"}
    assert (configuration["retrieval.top_k"], configuration["memory.max_results"]) == (None, 4), (
        "defaults"
    )
    assert set(configuration.origins.values()) == {str(folder / "contextual.toml")}


def test_options_come_before_the_environment_and_that_before_the_file(folder, monkeypatch):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE", "300")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_FILES__INCLUDE", "*.txt, *.rst")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_EMBED_MODEL", "ollama:nomic-embed-text")
    configuration = load_configuration(
        folder, Options({"files.include": ["*.go"], "files.exclude": None})
    )
    assert configuration["chunks.chunk_size"] == 300
    assert configuration.origins["chunks.chunk_size"] == "LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE"
    assert (configuration["files.include"], configuration.origins["files.include"]) == (
        ("*.go",),
        "--include",
    )
    assert "files.exclude" not in configuration.values
    assert configuration["embed_model"] == "ollama:nomic-embed-text"
    assert load_configuration(folder)["files.include"] == ("*.txt", "*.rst")


def test_values_in_python_are_named_by_their_keys_and_may_stand_in_tables(folder):
    for values in ({"retrieval.top_k": 3}, {"retrieval": {"top_k": 3, "min_score": None}}):
        configuration = load_configuration(folder, values)
        assert (configuration["retrieval.top_k"], configuration.origins["retrieval.top_k"]) == (
            3,
            "retrieval.top_k",
        )
    for values, message in (
        ({"retrieval.topk": 3}, r"^retrieval\.topk is not a known setting\. Use retrieval\.top_k,"),
        ({"retrieval": 3}, r"^retrieval must be a table"),
        ({"retrieval.top_k": "x"}, r"^retrieval\.top_k must be a valid integer.*'x'"),
        (Options({"retrieval.top_k": "x"}), r"^--top-k must be a valid integer"),
    ):
        with pytest.raises(SettingError, match=message):
            ContextualIndex.open(folder, config=values)


def test_settings_in_no_table_are_arguments_too(folder):
    with ContextualIndex.open(
        folder, show_context_to_llm=True, descriptions={"a/": "Tea"}
    ) as index:
        contexts = index.settings.contexts
        assert (contexts.show_context_to_llm, contexts.descriptions) == (True, {"a/": "Tea"})
    with pytest.raises(SettingError, match=r"^show_context_to_llm must be .*'perhaps'"):
        ContextualIndex.open(folder, show_context_to_llm="perhaps")


def test_a_prompt_without_its_places_is_refused(tmp_path):
    with (
        pytest.raises(SettingError, match=r"\{document\}"),
        ContextualIndex.open(
            tmp_path,
            context="llm",
            embed_model="none",
            config={"context_options.prompt": "Say it."},
        ) as index,
    ):
        index.refresh()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "chunk_size = 3",
            r"contextual\.toml: chunk_size is not a known setting\. Use chunks\.chunk_size",
        ),
        ("[chunks]\ncontext = 'off'", r"chunks\.context is not a known setting\. Use .*context"),
        ("[chunks]\nsize = 3", r"chunks\.size is not a known setting\. Use chunks\.chunk_size"),
        ("chunks = 3", r"chunks must be a table: \[chunks\]\."),
        (
            "[chunks]\nchunk_size = 5",
            r"chunks\.chunk_size must be greater than or equal to 20 \(got 5\)",
        ),
        ("[chunks]\nchunk_size = true", r"chunks\.chunk_size must be a number \(got True\)"),
        ('context = "magic"', r"context must be one of 'off'.*'magic'"),
        ("[files]\ninclude = []", r"files\.include must .*\(got \[\]\)"),
        ("context = ", r"contextual\.toml cannot be read as TOML in UTF-8: "),
        (
            '[descriptions]\na = "' + "x" * 301 + '"',
            r"descriptions\.a must .*'x+…",
        ),
    ],
)
def test_an_error_names_the_file_the_key_and_a_remedy(tmp_path, text, message):
    (tmp_path / "contextual.toml").write_text(text, "utf-8")
    with pytest.raises(SettingError, match=message) as error:
        load_configuration(tmp_path)
    assert str(tmp_path / "contextual.toml") in str(error.value)


def test_a_variable_that_is_not_known_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CHUNCKS__SIZE", "3")
    with pytest.raises(
        SettingError,
        match=r"^LLAMA_INDEX_CONTEXTUAL_CHUNCKS__SIZE is not a known setting\. Use .*chunk_size",
    ):
        load_configuration(tmp_path)


@pytest.mark.parametrize("name", ["COLLECTIONS", "FOO", "SERVICE", "DATABASE", "FILES"])
def test_no_variable_is_ignored_in_silence(tmp_path, monkeypatch, name):
    monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", "{}")
    with pytest.raises(
        SettingError, match=rf"^LLAMA_INDEX_CONTEXTUAL_{name} (is not a known setting|must)"
    ):
        load_configuration(tmp_path)


@pytest.mark.parametrize("name", ["CHUNK_SIZE", "CHUNKS_CHUNK_SIZE", "chunksize"])
def test_a_variable_that_lacks_its_table_is_named_with_the_setting(tmp_path, monkeypatch, name):
    monkeypatch.setenv(f"LLAMA_INDEX_CONTEXTUAL_{name}", "300")
    with pytest.raises(
        SettingError,
        match=rf"^LLAMA_INDEX_CONTEXTUAL_{name} is not a known setting\. Use .*chunks.chunk_size",
    ):
        load_configuration(tmp_path)


def test_variables_of_a_kubernetes_service_are_no_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_WEB_SERVICE_PORT_HTTP", "8080")
    assert load_configuration(tmp_path) == Configuration()


def test_there_are_few_settings_and_each_has_one_line():
    assert len(SETTINGS) <= 30
    meanings = [setting.meaning for setting in SETTINGS.values()]
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in meanings)


def test_the_settings_of_memory_are_those_of_the_plug_in():
    names = [setting.name for setting in SETTINGS.values() if setting.table == "memory"]
    declared = set(names) & set(MemorySettings.model_fields)
    assert set(names) - declared == {"refresh"}
    for name in declared:
        setting = SETTINGS[f"memory.{name}"]
        assert setting.default == MemorySettings.model_fields[name].default
        assert setting.meaning.endswith(".")
    with pytest.raises(ValidationError, match="less than or equal to 100000"):
        SETTINGS["memory.max_results"].adapter.validate_python(100_001)
    with pytest.raises(ValidationError, match="should be a number"):
        SETTINGS["memory.max_results"].adapter.validate_python(True)  # noqa: FBT003
    assert SETTINGS["memory.evergreen"].adapter.validate_python("a.md, b/*") == ("a.md", "b/*")


@pytest.mark.process
def test_the_settings_are_known_without_llama_index():
    code = (
        "import sys; from llama_index_contextual.app.settings import registry; "
        "sys.exit('llama_index.core' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def test_defaults_are_those_of_the_parts_that_obey_them():
    parts = {"files": FileRules().model_dump()}
    for key, setting in SETTINGS.items():
        if setting.table in parts and not setting.computed:
            assert parts[setting.table][setting.name] == setting.default, key
        elif setting.table == "chunks":
            assert setting.name in HeadingAwareMarkdownNodeParser.model_fields, key


def test_an_index_completes_what_nobody_sets_by_what_is_harmless(tmp_path):
    remembered = {
        "context": "pattern",
        "odd": 1,
        "chunks.chunk_size": 99,
        "embed_model": "ollama:x",
    }
    configuration = load_configuration(tmp_path, {"context": "off"}, remembered=remembered)
    assert configuration.values == {"context": "off", "chunks.chunk_size": 99}
    assert is_harmless("chunks.chunk_size", 99)
    for key, value in {
        "chunks.chunk_size": 10**400,
        "embed_model": "ollama:x",
        "files.hidden": True,
        "odd": 1,
    }.items():
        assert not is_harmless(key, value), key


class TestAnIndex:
    """What ``ContextualIndex.open`` makes of it."""

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
        (tmp_path / "tool.py").write_text("def wait() -> int:\n    return 60\n", "utf-8")
        return tmp_path

    def write(self, folder, text):
        (folder / "contextual.toml").write_text(text, "utf-8")
        return folder

    def test_obeys_the_file(self, folder):
        self.write(
            folder, 'context = "off"\n[files]\ninclude = ["*.py"]\n[chunks]\nchunk_size = 100\n'
        )
        with ContextualIndex.open(folder) as index:
            assert index.settings.folder_reader.rules == FileRules(include=("*.py",))
            parser = index.settings.parser
            assert (parser.chunk_size, parser.chunk_overlap, parser.min_chunk_size) == (100, 20, 12)
            assert index.settings.contexts.context == "off"

    def test_arguments_come_first(self, folder, users_own):
        self.write(
            folder,
            'context = "off"\n[files]\ninclude = ["*.py"]\n[context_options]\nllm = "ollama:x"\n',
        )
        users_own(folder)
        with ContextualIndex.open(
            folder, context="headings", files=FileRules(include=("*.md",))
        ) as index:
            assert index.settings.folder_reader.rules.include == ("*.md",)
            assert index.settings.contexts.context == "headings", "and the model waits for its mode"

    def test_gives_the_language_model_its_settings(self, folder, users_own):
        self.write(
            folder,
            'context = "llm"\n[context_options]\nllm = "ollama:x"\nbatch_size = 3\n'
            'prompt = "{document} says of {chunks}"\nnum_workers = 7\n',
        )
        users_own(folder)
        with ContextualIndex.open(folder, batch_size=4) as index:
            llm = index.settings.contexts.generator
            assert (llm.source.partition("+")[0], llm.batch_size) == ("llm:x", 4)
            assert llm.num_workers == 7
            assert llm.prompts == ("{document} says of {chunks}",)

    def test_pattern_reads_source_code_where_nobody_names_the_files(self, folder):
        with ContextualIndex.open(folder, context="pattern") as index:
            assert index.refresh().added == ["page.md", "tool.py"]
        self.write(folder, '[files]\ninclude = ["*.md"]\n')
        with ContextualIndex.open(folder, context="pattern") as index:
            assert index.refresh().deleted == ["tool.py"]

    def test_what_the_file_sets_comes_before_what_the_index_was_made_with(self, folder):
        with ContextualIndex.open(folder, context="off") as index:
            index.refresh()
        with ContextualIndex.open(folder) as index:
            assert index.settings.contexts.context == "off"
        self.write(folder, 'context = "headings"\n')
        with ContextualIndex.open(folder) as index:
            assert index.settings.contexts.context == "headings"

    def test_memory_and_retrievers_obey_the_file_in_python_too(self, folder):
        self.write(
            folder,
            "[memory]\nmax_results = 2\n[retrieval]\ntop_k = 3\nrecency = true\n"
            "half_life_days = 7\n",
        )
        with ContextualIndex.open(folder) as index:
            index.refresh()
            assert MemoryContext(index).settings == MemorySettings(max_results=2)
            assert MemoryContext(index, max_results=5).settings.max_results == 5
            retriever = index.as_retriever()
            assert retriever.similarity_top_k == 3
            assert [
                postprocessor.half_life_days for postprocessor in retriever.node_postprocessors
            ] == [7]
            assert index.as_retriever(4, recency=False).node_postprocessors == []

    def test_a_misspelt_argument_of_a_retriever_is_named_with_those_that_there_are(self, folder):
        with ContextualIndex.open(folder) as index:
            index.refresh()
            with pytest.raises(
                SettingError, match=r"as_retriever does not take min_scor\. It takes .* min_score"
            ):
                index.as_retriever(min_scor=0.1)
            with pytest.raises(SettingError, match=r"^`recency` must be a finite number"):
                index.as_retriever(recency="x")


@pytest.mark.parametrize("written", ["~/notes", "{home}/other/../notes", "{home}/link"])
def test_the_user_s_table_names_a_folder_by_any_of_its_paths(tmp_path, monkeypatch, written):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(notes)
    own = user_folder() / USER_FILE
    own.parent.mkdir(parents=True)
    own.write_text(f'[folders."{written.format(home=tmp_path)}".retrieval]\ntop_k = 7\n', "utf-8")
    assert load_configuration(notes)["retrieval.top_k"] == 7
    assert load_configuration(tmp_path / "other")["retrieval.top_k"] is None
