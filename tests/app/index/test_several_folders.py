"""Several folders in one index.

Names, one ranking, narrowed questions, a folder that is gone, a folder taken out.
"""

from __future__ import annotations

import json
import shutil

import pytest
from mcp_clients import mcp

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve import mcp_server
from llama_index_contextual.utils.errors import ConfirmationError, SettingError, StorageError


@pytest.fixture
def folders(tmp_path):
    notes, docs = tmp_path / "notes", tmp_path / "docs"
    (notes / "people").mkdir(parents=True)
    docs.mkdir()
    (notes / "people" / "priya.md").write_text("# Priya\n\nAllergic to cashews.\n")
    (docs / "gateway.md").write_text("# Gateway\n\n## Timeout\n\nThe default value is 60.\n")
    (docs / "readme.md").write_text("# Docs\n\nAll about cashews as a trade good.\n")
    return {"notes": notes, "docs": docs}


@pytest.fixture
def index(folders, tmp_path):
    with ContextualIndex.open(folders, storage=tmp_path / "storage", embed_model="none") as opened:
        opened.refresh()
        yield opened


def paths(index, question, **options):
    return [hit.node.metadata["path"] for hit in index.as_retriever(**options).retrieve(question)]


def test_one_ranking_holds_the_hits_of_all_folders_by_name(index):
    assert set(paths(index, "cashews")) == {"notes/people/priya.md", "docs/readme.md"}
    assert index.settings.folders.place("docs/gateway.md").read_text().startswith("# Gateway")
    assert index.read("notes/people/priya.md") == "# Priya\n\nAllergic to cashews.\n"


def test_a_question_is_narrowed_to_a_folder(index):
    assert paths(index, "cashews path:docs/") == ["docs/readme.md"]
    assert paths(index, "cashews path:notes/") == ["notes/people/priya.md"]


def test_the_storage_alone_opens_all_of_them_and_another_folder_joins(index, folders, tmp_path):
    more = tmp_path / "app"
    more.mkdir()
    (more / "cashew.md").write_text("# Cashew service\n")
    index.close()
    with ContextualIndex.open({"app": more}, storage=tmp_path / "storage") as opened:
        assert opened.refresh().added == ["app/cashew.md"]
    with ContextualIndex.open(None, storage=tmp_path / "storage", create=False) as reopened:
        assert [*reopened.settings.folders.by_name] == ["notes", "docs", "app"]
        assert reopened.status(check=True).ok


def test_what_is_indexed_of_a_folder_that_is_gone_stays_and_is_named(index, folders):
    away = folders["docs"].rename(folders["docs"].with_name("away"))
    report = index.refresh()
    assert not report.deleted
    assert [problem.path for problem in report.failed] == ["docs/"]
    assert "index docs=PATH at its new place" in report.failed[0].reason
    held = index.status()
    assert str(report).startswith(
        f"{held.documents} documents, {held.chunks} chunks: 1 not indexed"
    )
    assert "docs/gateway.md" in paths(index, "default value")
    shutil.rmtree(folders["notes"])
    with pytest.raises(StorageError, match="no longer there"):
        index.refresh()
    away.rename(folders["docs"])


def test_a_folder_whose_files_are_all_gone_is_not_emptied_without_a_word(index, folders):
    for file in folders["docs"].iterdir():
        file.unlink()
    with pytest.raises(ConfirmationError, match="2 of 3"):
        index.refresh()


def test_patterns_and_descriptions_name_a_folder_by_the_start_of_its_paths(folders, tmp_path):
    (folders["docs"] / "draft.md").write_text("# Cashew draft\n")
    (folders["notes"] / "draft.md").write_text("# Tea draft\n")
    with ContextualIndex.open(
        folders,
        storage=tmp_path / "s",
        embed_model="none",
        config={"descriptions": {"docs/": "trade handbook"}},
    ) as index:
        index.refresh()
        assert "trade handbook" in index.nodes("docs/gateway.md")[0].metadata["context"]
        assert "trade handbook" not in index.nodes("notes/draft.md")[0].metadata["context"]


def test_code_and_notes_get_contexts_by_their_kind(folders, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "wait.py").write_text(
        "class Gateway:\n    def wait(self):\n        raise TimeoutError\n"
    )
    code = {"app": tmp_path / "app"}
    with ContextualIndex.open(
        {**folders, **code}, storage=tmp_path / "s", context="pattern", embed_model="none"
    ) as index:
        index.refresh()
        of_code, of_notes = (
            index.nodes(path)[0].metadata["context"] for path in ("app/wait.py", "docs/gateway.md")
        )
    assert "From file: app/wait.py" in of_code
    assert of_notes == "Document: docs/gateway.md > Gateway > Timeout"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a/b": "notes"}, "cannot name a folder"),
        ({"notes": "notes", "people": "notes/people"}, "indexed twice"),
        ({"notes": ""}, r"the folder 'notes' needs a path \(got ''\)"),
        ({"notes": {"path": "notes"}}, r"the folder 'notes' needs a path \(got {'path'"),
    ],
)
def test_folders_that_cannot_work_are_refused(folders, tmp_path, monkeypatch, names, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=message):
        ContextualIndex.open(names, storage=tmp_path / "s")


def test_several_folders_need_a_storage_that_one_of_them_alone_cannot_open(
    index, folders, tmp_path
):
    with pytest.raises(SettingError, match="needs a storage folder"):
        ContextualIndex.open(folders)
    with pytest.raises(StorageError, match="belongs to the folders"):
        ContextualIndex.open(folders["docs"], storage=tmp_path / "storage")


def test_the_command_line_indexes_several_folders_and_narrows_to_one(run, folders, tmp_path):
    storage = tmp_path / "storage"
    run(
        "index",
        folders["notes"],
        f"handbook={folders['docs']}",
        "--storage",
        storage,
        "--embed-model",
        "none",
    )
    hits = json.loads(run("search", "cashews", "--storage", storage, "--json").stdout)
    assert {hit["path"] for hit in hits} == {"notes/people/priya.md", "handbook/readme.md"}
    hits = json.loads(
        run("search", "cashews", "--storage", storage, "--path", "handbook/", "--json").stdout
    )
    assert [hit["path"] for hit in hits] == ["handbook/readme.md"]


async def test_one_mcp_server_serves_all_of_them(index, folders):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        assert "Folders: docs/ 2, " in (await client.call_tool("list", {})).content[0].text
        hits = await client.call_tool("retrieve", {"query": "cashews", "path": "docs/"})
        assert "docs/readme.md" in hits.content[0].text
        assert "priya" not in hits.content[0].text
        note = await client.call_tool("read", {"path": "notes/people/priya.md"})
        assert "Allergic to cashews." in note.content[0].text


def test_a_folder_of_several_says_nothing(folders, tmp_path):
    (folders["docs"] / "contextual.toml").write_text(
        '[chunks]\nchunk_size = 20\n[files]\nexclude = ["*"]\n[descriptions]\n'
        '"../notes/" = "harmless"\n'
    )
    with ContextualIndex.open(folders, storage=tmp_path / "s", embed_model="none") as index:
        index.refresh()
        assert [*index.settings.folders.by_name] == ["notes", "docs"]
        assert {"docs/readme.md", "notes/people/priya.md"} <= {*index.documents()}
        assert "harmless" not in str(index.nodes("notes/people/priya.md")[0].metadata)
