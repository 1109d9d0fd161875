"""Obsidian vaults: filters, aliases, templates, drawings, comments and links."""

from __future__ import annotations

import json
import os
import warnings

import pytest
from click.testing import CliRunner
from llama_index.core.schema import Document, MetadataMode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from mcp_clients import mcp
from previewed import preview

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.cli import app
from llama_index_contextual.app.folder.vault import without_comments
from llama_index_contextual.app.serve import mcp_server
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.tools.places import part_of
from llama_index_contextual.utils.errors import ContextualWarning, DocumentError, SettingError
from llama_index_contextual.utils.text import inline_tags

PLAN = """---
status: Open
rating: 4
topics: [ML, art history]
due: 2026-05-01
published: true
zip: "01234"
aliases: [Sea Plan, The Plan]
nested: {a: 1}
---
# Harbour plan

Dredging begins in May. #work/harbour

%% secret draft remark about dredging %%

## Money

The dredging costs 400,000.
"""


@pytest.fixture
def vault(tmp_path):
    folder = tmp_path / "My vault"
    for name in (".obsidian", "Templates", "people", ".trash"):
        (folder / name).mkdir(parents=True)
    (folder / ".obsidian" / "templates.json").write_text('{"folder": "Templates"}')
    (folder / "Templates" / "daily.md").write_text("# {{date}}\n\nDredging of the day\n")
    (folder / "Sketch.excalidraw.md").write_text("# Excalidraw data\n\ndredging\n")
    (folder / ".trash" / "old.md").write_text("dredging of old\n")
    (folder / "plan.md").write_text(PLAN)
    (folder / "people" / "ana.md").write_text(
        "---\nstatus: done\nrating: 2\ntopics: dance\ntags: [work]\n---\n# Ana\n\nAna "
        "hates dredging. #health/running\n"
    )
    (folder / "list.md").write_text(
        "# List\n\nMore dredging, with no properties. Issue #42 is no tag.\n"
    )
    return folder


@pytest.fixture
def index(vault):
    with ContextualIndex.open(vault, embed_model="none") as opened:
        opened.refresh()
        yield opened


def paths_found(index, question="dredging", **narrowed):
    retriever = index.as_retriever(20, filters=note_filters(**narrowed))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ContextualWarning
        )  # another test expects it where nothing passes
        return {hit.node.metadata["path"] for hit in retriever.retrieve(question)}


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("status=open", {"plan.md"}),
        ("STATUS = Open", {"plan.md"}),
        ("status!=open", {"people/ana.md", "list.md"}),
        ("status=", {"list.md"}),
        ("status!=", {"plan.md", "people/ana.md"}),
        ("rating>=4", {"plan.md"}),
        ("rating<4", {"people/ana.md"}),
        ("rating=4.0", {"plan.md"}),
        ("topics=ml", {"plan.md"}),
        ("topics=art history", {"plan.md"}),
        ("topics=art", set()),
        ("topics~art", {"plan.md"}),
        ("due<2026-06-01", {"plan.md"}),
        ("due>2026-06-01", set()),
        ("published=true", {"plan.md"}),
        ("published=false", set()),
        ("zip=01234", {"plan.md"}),
    ],
)
def test_front_matter_narrows_a_question(index, where, paths):
    assert paths_found(index, where=[where]) == paths


@pytest.mark.parametrize("where", ["rating>>4", "rating=>4", "rating=<4", "status===open", "open"])
def test_a_mistyped_operator_is_not_a_value(where):
    with pytest.raises(SettingError, match=f"`where` must be .*'{where}'"):
        note_filters(where=[where])


def test_conditions_are_combined_and_every_chunk_has_the_metadata(index):
    assert paths_found(index, where=["status=open", "rating<4"]) == set()
    assert paths_found(index, "What does it cost?", where=["status=open"]) == {"plan.md"}
    plain = MetadataFilters(filters=[MetadataFilter(key="rating", value=4)])
    assert {
        hit.node.metadata["path"] for hit in index.as_retriever(filters=plain).retrieve("dredging")
    } == {"plan.md"}


def test_a_filter_on_an_unknown_key_is_named(index):
    retriever = index.as_retriever(filters=note_filters(where=["unheard=3", "status=open"]))
    assert retriever.retrieve("dredging") == []
    [said] = retriever.explain("dredging").remarks
    assert said.startswith(
        "no chunk matches the filters: none has unheard == 3 (keys that exist: published, "
    )
    assert "status" in said


def test_filters_that_together_match_nothing_are_reported(vault):
    with ContextualIndex.open(vault) as index:  # vectors find something unless nothing passes
        index.refresh()
        retriever = index.as_retriever(filters=note_filters(where=["status=open", "rating<4"]))
        [said] = retriever.explain("dredging").remarks
    assert said == "no chunk matches the filters"


@pytest.mark.parametrize("condition", ["status", "=open", ""])
def test_an_invalid_condition_is_an_error_with_a_hint(condition):
    with pytest.raises(SettingError, match="KEY=VALUE"):
        note_filters(where=[condition])


def test_a_tag_is_found_with_nested_tags_in_front_matter_and_text(index):
    assert paths_found(index, tag="work") == {"plan.md", "people/ana.md"}
    assert paths_found(index, tag="#Work/Harbour") == {"plan.md"}
    assert paths_found(index, tag="health") == {"people/ana.md"}
    assert paths_found(index, tag="heal") == set()
    assert paths_found(index, tag="42") == set()
    assert paths_found(index, "dredging tag:health/running") == {"people/ana.md"}


def test_metadata_for_filters_is_in_no_view_and_changes_no_metadata_of_a_document():
    brought = Document(text=PLAN, metadata={"rating": "five stars"})
    plain = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([brought])
    assert {node.metadata["rating"] for node in plain} == {"five stars"}
    assert {node.metadata["status"] for node in plain} == {"Open"}
    for node in plain:
        assert "rating: five stars" in node.get_content(MetadataMode.EMBED)
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            assert not {"status", "topics", "inline_tags", "work/harbour, "} & {
                line.partition(":")[0] for line in node.get_content(mode).splitlines()
            }
    assert "nested" not in plain[0].metadata
    assert plain[0].metadata["zip"] == "01234"


def test_front_matter_cannot_replace_metadata_of_the_package():
    text = (
        "---\npath: /etc/passwd\nstart_line: 9\ncontext: lies\nfile_path: x\ninline_tags: y\n"
        "---\nText.\n"
    )
    [node] = HeadingAwareMarkdownNodeParser().get_nodes_from_documents([Document(text=text)])
    assert {"context", "file_path", "inline_tags", "path"}.isdisjoint(node.metadata)
    assert node.metadata["start_line"] == 8


def test_inline_tags_follow_obsidian():
    text = "#a one #b/c-d, (#e_f) x#no #123 `#code` #1a\n```\n#fence\n```\n# Heading\n#a again #A"
    text += "\n[x](y#anchor) [y](#there), ## B { #b }\n{: #c}\n[y]: #there"
    assert inline_tags(text) == ["a", "b/c-d", "e_f", "1a"]


def test_comments_become_blank_and_offsets_stay():
    text = "a %%b%% c\n%%\nd\n%%\n`%%` e\n```\n%% f %%\n```\n%% open"
    clean, number = without_comments(text)
    assert (len(clean), clean.count("\n"), number) == (len(text), text.count("\n"), 2)
    assert "b" not in clean
    assert "d" not in clean
    assert "%% f %%" in clean
    assert clean.endswith("%% open")
    assert without_comments("100%% of 50%%")[1] == 1  # as Obsidian reads it
    assert without_comments("%%\n```\n%%bash\n```\nsecret %%\nText")[0].split() == ["Text"]
    assert without_comments("%% use `%%time` here %% seen")[0].split() == ["seen"]


def test_comments_of_a_vault_are_left_out_and_counted(vault):
    with ContextualIndex.open(vault, embed_model="none") as opened:
        report = opened.refresh()
        assert [str(repair) for repair in report.repaired] == ["plan.md: 1 comment (%%) left out"]
        assert not any("secret" in node.text for node in opened.nodes())
        assert all(
            opened.read("plan.md")[n.start_char_idx : n.end_char_idx] == n.text
            for n in opened.nodes("plan.md")
        )


def test_outside_of_a_vault_comments_and_templates_are_text(vault):
    (vault / ".obsidian" / "templates.json").unlink()
    (vault / ".obsidian").rmdir()
    with ContextualIndex.open(vault, embed_model="none") as opened:
        opened.refresh()
        assert any("secret" in node.text for node in opened.nodes())
        assert {"Templates/daily.md", "Sketch.excalidraw.md"} <= opened.documents().keys()
        assert opened.settings.find_files().skipped == []


def test_templates_and_drawings_are_not_notes_and_are_named(vault, index):
    assert index.documents().keys() == {"plan.md", "people/ana.md", "list.md"}
    assert index.settings.find_files().skipped == ["Sketch.excalidraw.md", "Templates/daily.md"]
    said = CliRunner().invoke(app, ["status", str(vault)]).stderr
    assert "2 files not read: 2 md" in said
    named = CliRunner().invoke(app, ["status", str(vault), "--list-skipped"]).stderr
    assert "not read: Templates/daily.md" in named


@pytest.mark.parametrize(
    "name", ["Map.EXCALIDRAW.MD", "Map.Excalidraw.md", "deep/Map.excalidraw.md"]
)
def test_a_drawing_is_not_a_note_in_any_spelling_of_its_name(vault, name):
    (vault / name).parent.mkdir(exist_ok=True)
    (vault / name).write_text("# Excalidraw data\n\ndredging\n")
    with ContextualIndex.open(vault, embed_model="none") as opened:
        assert name in opened.settings.find_files().skipped


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"folder": 3}', '{"folder": "/"}', '{"folder": "../.."}', "[" * 99999]
)
def test_invalid_settings_of_a_vault_leave_nothing_out(vault, content):
    (vault / ".obsidian" / "templates.json").write_text(content)
    with ContextualIndex.open(vault, embed_model="none") as opened:
        opened.refresh()
        assert opened.settings.find_files().skipped == ["Sketch.excalidraw.md"]
        assert "plan.md" in opened.documents()


def test_settings_of_a_vault_in_pipes_or_outside_are_not_read(vault, tmp_path):
    settings = vault / ".obsidian" / "templates.json"
    settings.unlink()
    os.mkfifo(settings)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.json").write_text('{"templates_folder": "people"}')
    (vault / ".obsidian" / "plugins").mkdir()
    (vault / ".obsidian" / "plugins" / "templater-obsidian").symlink_to(tmp_path / "elsewhere")
    with ContextualIndex.open(vault, embed_model="none") as opened:
        assert opened.settings.find_files().skipped == ["Sketch.excalidraw.md"]


def test_a_preview_shows_what_an_index_would_contain(index):
    texts = [node.text for node in preview(index, "plan.md")]
    assert texts == [node.text for node in index.nodes("plan.md")]


def test_a_vault_below_the_folder_has_its_own_rules(tmp_path, vault):
    (tmp_path / "plain.md").write_text("%% kept %% text\n")
    with ContextualIndex.open(tmp_path, embed_model="none") as opened:
        opened.refresh()
        assert "kept" in opened.read("plain.md")
        assert "My vault/Templates/daily.md" in opened.settings.find_files().skipped
        assert "secret" not in opened.read("My vault/plan.md")


def test_a_note_is_found_by_another_name(index):
    assert part_of(index.notes, "[[sea plan]]").path == "plan.md"
    assert part_of(index.notes, "[[The Plan#Money]]").text.startswith("## Money")
    with pytest.raises(DocumentError, match="There is no note"):
        part_of(index.notes, "[[Nobody]]")


def test_the_command_line_narrows(vault, index):
    run = CliRunner().invoke(
        app, ["search", "dredging", "-f", str(vault), "--where", "status=open", "--json"]
    )
    assert {hit["path"] for hit in json.loads(run.stdout)} == {"plan.md"}
    wrong = CliRunner().invoke(app, ["search", "dredging", "-f", str(vault), "--where", "status"])
    assert wrong.exit_code != 0
    nothing = CliRunner().invoke(
        app, ["search", "dredging", "-f", str(vault), "--where", "status=unheard"]
    )
    assert "status" in nothing.stderr


async def test_an_agent_narrows_by_front_matter(vault, index):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        answer = await client.call_tool("retrieve", {"query": "dredging", "where": ["status=done"]})
        assert [hit["citation"].partition("#")[0] for hit in answer.structured_content["hits"]] == [
            "people/ana.md"
        ]


def test_code_holds_no_tags_and_lists_do():
    code = "```c\n#define X\n```\n\n    #include <a>\n\n> #quoted words\n\n`#span`\n"
    assert inline_tags(f"# A\n\n{code}\nA #real one.\n\n- item\n    - nested #deep\n") == [
        "real",
        "deep",
    ]
