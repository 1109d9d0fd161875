"""A folder of somebody else is data.

Servers, stores, paths and classes that it names are ignored.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from state_table import change_state, state_in
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.loading import is_harmless, load_configuration
from llama_index_contextual.app.settings.registry import SETTINGS
from llama_index_contextual.utils.errors import ContextualWarning, SettingError, StorageError

pytestmark = pytest.mark.filterwarnings(
    "always::llama_index_contextual.utils.errors.ContextualWarning"
)
NEVER_SAFE = ("context_options", "files.hidden")
ASKS = 'embed_model = "ollama:x@http://127.0.0.1:1"\n[chunks]\nchunk_size = 77\n'


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "notes"
    made.mkdir()
    (made / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    return made


def chunk_size(folder):
    with ContextualIndex.open(folder, reindex=True) as index:
        return index.settings.parser.chunk_size


def change(folder, choices, **said):
    """Change the state of a folder's index, as somebody who made another index could."""
    storage = storage_of(folder)
    change_state(storage, choices={**state_in(storage)["choices"], **choices}, **said)


def indexed(folder, **settings):
    with ContextualIndex.open(folder, **settings) as index:
        index.refresh()
    return folder


# The folder's configuration


def test_no_setting_of_a_folder_names_a_server_model_store_path_or_secret():
    safe = {key: setting.harmless for key, setting in SETTINGS.items()}
    assert not [key for key, value in safe.items() if key.startswith(NEVER_SAFE) and value]
    assert safe["embed_model"] == ("local", "e5", "none")
    assert is_harmless("context", "pattern")
    assert not is_harmless("context", "llm")
    assert not is_harmless("embed_model", "local:/elsewhere")
    assert is_harmless("embed_model", "e5")
    assert len(safe) <= 30


def test_one_line_names_the_ignored_settings_of_a_folder_and_the_others_apply(folder, run):
    name = "contextual.toml"
    (folder / name).write_text(ASKS, "utf-8")
    done = run("index", folder)
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if "may not set" in line]
    assert (
        f"{folder / name}: embed_model ignored, because a folder's own file may not set it. "
        in line
    )
    assert f'[folders."{folder}"]' in line
    with pytest.warns(ContextualWarning, match=r"embed_model ignored"):
        assert chunk_size(folder) == 77
    shown = run("config", folder, "--json").stdout
    assert json.loads(shown)["embed_model"] == {"value": "local", "from": "default"}


def test_options_the_environment_and_the_user_file_apply(folder, monkeypatch, tmp_path):
    own = tmp_path / "user" / "llama-index-contextual"
    own.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own.parent))
    (own / "config.toml").write_text(
        '[context_options]\nllm = "openai:own"\n[retrieval]\ntop_k = 3\n[chunks]\n'
        "chunk_size = 50\n",
        "utf-8",
    )
    (folder / "contextual.toml").write_text("[chunks]\nchunk_size = 77\n", "utf-8")
    configuration = load_configuration(folder)
    assert (
        configuration["context_options.llm"],
        configuration["retrieval.top_k"],
        configuration["chunks.chunk_size"],
    ) == (
        "openai:own",
        3,
        77,
    )
    assert configuration.origins["context_options.llm"] == str(own / "config.toml")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CONTEXT_OPTIONS__LLM", "openai:environment")
    assert load_configuration(folder)["context_options.llm"] == "openai:environment"
    assert (
        load_configuration(folder, {"context_options.llm": "openai:option"})["context_options.llm"]
        == "openai:option"
    )


def test_a_mistake_in_an_ignored_setting_is_still_an_error(folder):
    (folder / "contextual.toml").write_text('context = "magic"\n', "utf-8")
    with pytest.raises(SettingError, match=r"contextual\.toml: context must be .*'magic'"):
        load_configuration(folder)


def test_no_command_takes_settings_or_an_index_from_a_parent(folder, run):
    below = folder / "below"
    below.mkdir()
    (below / "page.md").write_text(
        "# Page\n\nThe gateway waits.\n\n" + "It waits for long. " * 60, "utf-8"
    )
    (folder / "contextual.toml").write_text(
        'context = "magic"\n[chunks]\nchunk_size = 20\nchunk_overlap = 0\n', "utf-8"
    )
    (folder / ".contextual").mkdir()
    (folder / ".contextual" / "index.sqlite3").write_text("not read", "utf-8")
    assert len(json.loads(run("preview", below / "page.md", "--json").stdout)) == 2
    for command in (
        ["index", below],
        ["search", "gateway", "--folder", below],
        ["status", below],
        ["status", "--check", below],
    ):
        assert run(*command).returncode == 0
    (folder / "contextual.toml").write_text(
        "[chunks]\nchunk_size = 20\nchunk_overlap = 0\n", "utf-8"
    )
    shutil.rmtree(folder / ".contextual")
    assert (
        len(json.loads(run("preview", below / "page.md", "--folder", folder, "--json").stdout)) > 5
    )


def test_the_user_file_can_have_a_table_for_one_folder(folder, users_own):
    (folder / "contextual.toml").write_text(ASKS, "utf-8")
    users_own(folder)
    (folder / "contextual.toml").write_text("[retrieval]\ntop_k = 3\n", "utf-8")
    configuration = load_configuration(folder)
    assert (
        configuration["embed_model"],
        configuration["chunks.chunk_size"],
        configuration["retrieval.top_k"],
    ) == (
        "ollama:x@http://127.0.0.1:1",
        77,
        3,
    )
    copied = shutil.copytree(folder, folder.parent / "copied")
    assert load_configuration(copied)["embed_model"] == "local", "the table is of one folder"


# The folder's index


EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Thing: pass\n"
CLASS = {"class": "evil_of_a_stranger:Thing", "settings": {}}


@pytest.mark.parametrize(
    "choices", [{"parser": CLASS}, {"readers": {".md": CLASS}}], ids=["parser", "reader"]
)
def test_no_class_of_a_strangers_index_is_imported(folder, tmp_path, monkeypatch, choices, run):
    monkeypatch.delitem(sys.modules, "evil_of_a_stranger", raising=False)
    (tmp_path / "evil_of_a_stranger.py").write_text(EVIL, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    change(indexed(folder), choices=choices)
    assert run("search", "gateway", "--folder", folder).returncode == 0
    for command in (["status"], ["status", "--check"], ["config"]):
        assert run(*command, folder).returncode == 0
    assert run("index", folder).returncode == 0
    assert not (tmp_path / "ran").exists()
    assert "evil_of_a_stranger" not in sys.modules


@pytest.mark.parametrize(
    "choices",
    [
        {"embed_model": "ollama:x@http://127.0.0.1:1"},
        {"context": "llm", "context_options.llm": "ollama:x@http://127.0.0.1:1"},
        {"files.hidden": True, "files.include": ["*.md"]},
        {"chunks.chunk_size": 10**400},
        {"context": {"spec": "llm", "llm": "ollama:x@http://127.0.0.1:1"}},
    ],
)
def test_servers_models_and_paths_in_a_strangers_index_are_ignored(folder, choices):
    change(indexed(folder), choices=choices)
    with ContextualIndex.open(folder) as index:
        assert not index.settings.folder_reader.rules.hidden
        assert index.settings.paid_source is None
        assert index.as_retriever().retrieve("gateway")
        assert index.refresh().skipped == 1
        assert not index.settings.database.state().choices.keys() & choices.keys() - {
            "files.include"
        }


@pytest.mark.parametrize("link", ["index.sqlite3", "cache", "cache/bm25.arrays"])
def test_a_storage_with_a_link_in_it_is_refused(folder, tmp_path, link):
    mine, storage = tmp_path / "mine", tmp_path / "storage"
    indexed(folder, storage=storage)
    shutil.copytree(storage, mine)
    place = storage / link
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(mine / link)
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match=r"is a symbolic link.*Remove it"):
        ContextualIndex.open(folder, storage=storage)
    assert before == {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("part", ["index.sqlite3", "settings.json", "cache/bm25.arrays"])
def test_a_pipe_in_an_index_is_refused_before_it_is_opened(folder, part):
    place = storage_of(indexed(folder)) / part
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(StorageError, match=f"{part} is not a regular file"):
        ContextualIndex.open(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode")
@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_folder_whose_name_is_not_utf_8_is_indexed(tmp_path, as_mapping):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "a.md").write_text("# Tea\n\nGreen tea steeps at 80 degrees.\n")
    which = {"notes": folder} if as_mapping else folder
    for _ in range(2):
        with ContextualIndex.open(which, storage=tmp_path / "storage", embed_model="none") as index:
            assert index.refresh().failed == []
            [hit] = index.as_retriever().retrieve("green tea")
            assert hit.node.metadata["path"].endswith("a.md")
