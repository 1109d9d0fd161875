"""The tools and resources of the MCP server that search and read notes, called in this process."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from mcp_clients import mcp, text_of
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.serve import mcp_server
from llama_index_contextual.memory.digest import NOTHING
from llama_index_contextual.utils.errors import MissingExtraError


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("memory_context", {}, "`memory_context` needs `message`."),
        (
            "memory_context",
            {"message": 3},
            "`message` of `memory_context` must be a valid string (got 3).",
        ),
        (
            "read",
            {"path": "a.md", "lines": -1},
            "`lines` of `read` must be greater than or equal to 0 (got -1).",
        ),
        ("retrieve", {"query": ""}, "query"),
        ("retrieve", {"query": "x", "max_results": 0}, "max_results"),
        ("retrieve", {"query": "x", "max_results": 10_000}, "max_results"),
        ("retrieve", {"query": "x" * 2001}, "query"),
        ("retrieve", {"query": "x", "where": ["(" * 2001]}, "where"),
        *[
            ("retrieve", {"query": "x", name: "a/" * 1001}, name)
            for name in ("path", "tag", "since", "until")
        ],
        ("read", {"path": "#" * 2001}, "path"),
        ("list", {"path": "a/" * 1001}, "path"),
        ("retrieve", {"query": "x", "since": "soonish"}, "`since` must be a date"),
        (
            "retrieve",
            {"query": "x", "since": "2026-02-01", "until": "2026-01-01"},
            "`since` must not be after `until`",
        ),
    ],
)
async def test_malformed_arguments_are_named_and_harm_nothing(index, tool, arguments, named):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert named in result.content[0].text
        assert "pydantic" not in result.content[0].text
        assert "\n" not in result.content[0].text
        assert "carrots" in await text_of(client, "retrieve", query="carrots")


@pytest.mark.parametrize(
    ("filters", "expected_paths"),
    [
        ({}, {"MEMORY.md", "memory/2026-04-09.md"}),
        ({"path": "Memory/"}, {"memory/2026-04-09.md"}),
        ({"tag": "#Facts"}, {"MEMORY.md"}),
        ({"since": "2026-04-09", "until": "2026-04-09"}, {"memory/2026-04-09.md"}),
        ({"since": "2026-04-10"}, set()),
        ({"path": "memory/", "tag": "facts"}, set()),
    ],
)
async def test_a_search_can_be_confined_to_some_notes(folder, index, filters, expected_paths):
    (folder / "MEMORY.md").write_text(
        "---\ntags: [facts, colours]\n---\n# Facts\n\nColor: blue\n", "utf-8"
    )
    index.refresh()
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        answer = await client.call_tool("retrieve", {"query": "carrots", **filters})
        assert {
            hit["citation"].partition("#")[0] for hit in answer.structured_content["hits"]
        } == expected_paths


async def test_a_search_says_which_words_no_note_holds(index):
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        said = await text_of(client, "retrieve", query="zzzqq")
        assert said.startswith("(Nothing found.)\n(Search: left out ")
        assert said.endswith('(Search: the index does not know "zzzqq".)')
        for query in ("carrots", "path:MEMORY.md carrots"):
            assert "does not know" not in await text_of(client, "retrieve", query=query)


async def test_a_client_is_told_why_there_is_no_answer(folder):
    with ContextualIndex.open(folder) as index:
        async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
            asked = [
                ("retrieve", {"query": "x"}),
                ("memory_context", {"message": "JC's dog, is it?"}),
            ]
            for tool, arguments in asked:
                result = await client.call_tool(tool, arguments)
                assert result.is_error
                assert "there is no index in" in result.content[0].text
                assert "Run: " in result.content[0].text
    assert not storage_of(folder).exists()


async def test_small_talk_touches_neither_folder_nor_index(index, monkeypatch):
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        monkeypatch.setattr(index, "freshness", None)
        monkeypatch.setattr(index, "documents", None)
        assert await text_of(client, "memory_context", message="hola") == NOTHING


async def test_notes_are_listed_with_what_narrows_them_and_read_in_parts(folder, index):
    (folder / "long.md").write_text(
        "".join(f"line {number}\n" for number in range(1, 301)), "utf-8"
    )
    (folder / "MEMORY.md").write_text(
        "---\nstatus: open\ntags: [facts]\n---\n# Facts\n\nColor: blue\n", "utf-8"
    )
    index.refresh()
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        listed = await text_of(client, "list")
        assert listed.splitlines() == [
            "MEMORY.md", "long.md", "memory/2026-04-09.md", "",
            "Folders: memory/ 1", "Tags: facts 1", "Front matter: status 1",
        ]  # fmt: skip
        assert (await text_of(client, "list", path="memory/")).splitlines()[
            0
        ] == "memory/2026-04-09.md"
        part = await text_of(client, "read", path="long.md", from_line=10, lines=2)
        assert part == "line 10\nline 11\n\n(lines 10 to 11 of 300)"
        start = await text_of(client, "read", path="long.md")
        last = start.splitlines()[-3].removeprefix("line ")
        assert len(start) <= 2500
        next_call = f"Next: read with path=long.md from_line={int(last) + 1})"
        assert start.endswith(f"(lines 1 to {last} of 300. {next_call}")
        (folder / "new.md").write_text("# New\n", "utf-8")
        assert "(Index: 1 file changed since; run index.)" in await text_of(client, "list")
        for path in ("../outside.md", ".secret.md"):
            assert (await client.call_tool("read", {"path": path})).is_error


async def test_a_name_that_no_note_has_suggests_the_nearest(folder, index):
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        for name in ("[[memry]]", "memry.md", "MEMRY"):
            answer = await client.call_tool("read", {"path": name})
            assert answer.is_error
            assert "Did you mean MEMORY.md" in answer.content[0].text
        assert "blue" in await text_of(client, "read", path="memory"), "a bare name"
        missed = await client.call_tool("read", {"path": "zzzz"})
        assert missed.content[0].text.endswith("Search for its words."), "no note is near"
        missed = await client.call_tool("list", {"path": "memry"})
        assert missed.content[0].text == (
            "There is no note in a folder 'memry'. Did you mean memory/?"
        )


async def test_a_note_is_read_by_an_alias_that_is_a_number_or_a_truth_value(folder, index):
    for value in ("404", "true", "1.5"):
        (folder / f"of {value}.md").write_text(
            f"---\nalias: {value}\n---\nText of {value}.\n", "utf-8"
        )
    index.refresh()
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        for value in ("404", "true", "1.5"):
            assert f"Text of {value}." in await text_of(client, "read", path=value)


async def test_at_most_two_hits_are_of_one_note_and_the_others_are_counted(folder, index):
    (folder / "many.md").write_text(
        "".join(f"# Part {n}\n\nZebras graze here, {n}.\n\n" * 3 for n in range(9)), "utf-8"
    )
    (folder / "zoo.md").write_text("# Zoo\n\nZebras live here.\n", "utf-8")
    with ContextualIndex.open(folder, storage=folder.parent / "s", embed_model="none") as words:
        words.settings.parser.chunk_size = 20
        words.refresh()
        async with mcp.Client(mcp_server.NotesServer(words, refresh="never")) as client:
            answer = await client.call_tool("retrieve", {"query": "zebras"})
            paths = [hit["citation"].partition("#")[0] for hit in answer.structured_content["hits"]]
            assert paths.count("many.md") <= 2
            every = await client.call_tool(
                "retrieve", {"query": "zebras", "per_file": 0, "max_results": 9}
            )
            assert (
                len(every.structured_content["hits"]) > len(paths)
                or "more in many.md" not in answer.content[0].text
            )


async def test_the_answer_is_text_once_and_descriptions_are_short(index):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        tools = (await client.list_tools()).tools
        described = [tool.description + json.dumps(tool.input_schema) for tool in tools]
        assert sum(map(len, described)) <= 6000
        for tool in tools:
            parameters = tool.input_schema["properties"].values()
            assert all("description" in parameter for parameter in parameters), tool.name
        answer = await client.call_tool("retrieve", {"query": "carrots"})
        assert "Cookie loves carrots" in answer.content[0].text
        assert answer.content[0].text.startswith(
            "## Found in the notes\n- [memory/2026-04-09.md#L1-L3]"
        )
        assert "carrots" not in json.dumps(answer.structured_content)
        assert answer.structured_content["hits"][0]["citation"] == "memory/2026-04-09.md#L1-L3"


async def test_a_name_of_many_signs_costs_few_looks_at_the_folder(index, monkeypatch):
    looks, files = [], index.files
    monkeypatch.setattr(index, "files", lambda *below: looks.append(below) or files(*below))
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        result = await client.call_tool("read", {"path": "a#" * 1000})
    assert "There is no note" in result.content[0].text
    assert len(looks) < 15


async def test_a_note_is_read_by_the_path_that_a_citation_shows(folder, index):
    names = {"plan [old].md": "The walrus retires.", "new\nline.md": "The heron moved."}
    for name, text in names.items():
        (folder / name).write_text(f"# Page\n\n{text}\n", "utf-8")
    index.refresh()
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        assert (await text_of(client, "list")).splitlines()[:4] == [
            "MEMORY.md",
            "memory/2026-04-09.md",
            "new line.md",
            "plan %5Bold%5D.md",
        ]
        for name, text in names.items():
            answer = await client.call_tool("retrieve", {"query": text, "max_results": 1})
            cited = answer.structured_content["hits"][0]["citation"].partition("#")[0]
            assert cited != name
            assert await text_of(client, "read", path=cited) == await text_of(
                client, "read", path=name
            )
            assert text in await text_of(client, "read", path=cited)
        assert await text_of(client, "list", path="plan %5Bold%5D.md") == "plan %5Bold%5D.md"


async def test_an_unreadable_part_of_a_note_is_an_error(folder, index):
    (folder / "binary.md").write_bytes(b"\0\0")
    (folder / "empty.md").touch()
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        for arguments, said in [
            ({"path": "binary.md"}, "'binary.md' cannot be read"),
            (
                {"path": "MEMORY.md", "from_line": 99},
                "'MEMORY.md' has no line 99. It has 3 lines.",
            ),
        ]:
            result = await client.call_tool("read", arguments)
            assert result.is_error
            assert said in result.content[0].text
        assert await text_of(client, "read", path="empty.md") == ""


async def test_only_the_start_of_a_long_message_is_read(index):
    long = "what does JC's dog love? " + "carrots " * 100_000
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        assert "Cookie loves carrots" in await text_of(client, "memory_context", message=long)


async def test_a_note_is_read_by_the_rules_of_the_index(folder):
    with ContextualIndex.open(folder, files=FileRules(exclude=("people/",))) as index:
        (folder / "people").mkdir()
        (folder / "people" / "marta.md").write_text("private", "utf-8")
        async with mcp.Client(mcp_server.NotesServer(index)) as client:
            with pytest.raises(mcp.MCPError):
                await client.read_resource("note:///people/marta.md")


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, mcp_server.__name__)
    with pytest.raises(MissingExtraError, match=r"\[app\]"):
        importlib.import_module(mcp_server.__name__)


async def test_a_page_of_a_document_is_read_by_its_citation(folder, index):
    source = Path(__file__).parents[3] / "examples" / "documents"
    for name in ("report.pdf", "fees.xlsx"):
        (folder / name).write_bytes((source / name).read_bytes())
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        page = await text_of(client, "read", path="report.pdf#page=2")
        assert (
            page.strip()
            == index.read("report.pdf#page=2").strip()
            != index.read("report.pdf#page=1").strip()
        )
        result = await client.call_tool("read", {"path": "report.pdf#page=99"})
        assert result.is_error
        assert "'report.pdf#page=99' cannot be read" in result.content[0].text


async def test_tools_have_titles_only_read_and_describe_their_answers(index):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.title and tool.description for tool in tools.values())
        calls = {
            "memory_context": {"message": "what does JC's dog love?"},
            "retrieve": {"query": "carrots"},
            "read": {"path": "MEMORY.md"}, "list": {}, "grep": {"pattern": "blue"},
        }  # fmt: skip
        assert set(calls) == set(tools)
        answers = {
            name: await client.call_tool(name, arguments) for name, arguments in calls.items()
        }
        for name, answer in answers.items():  # the client holds the data to the schema
            assert answer.structured_content, name
            assert answer.content[0].text
        [hit, *_] = answers["retrieve"].structured_content["hits"]
        assert hit["citation"] == "memory/2026-04-09.md#L1-L3"
        assert answers["list"].structured_content["total"] == 2
        assert answers["read"].structured_content["total_lines"] == 3


CITED = {
    "people/ana.md": (1, 7), "[people/ana.md]": (1, 7), "people/ana.md#L3-L4": (3, 4),
    "people/ana.md#L3-4": (3, 4),
    "[people/ana.md#L5]": (5, 5), "people/ana.md#L6-L99": (6, 7), "[[Ana]]": (1, 7),
    "[[people/ana]]": (1, 7),
    "[[ana.md|my friend]]": (1, 7), "![[Ana#Work]]": (3, 5), "[[Ana#Home]]": (6, 7),
    " people/ana.md#L7-L7 ": (7, 7), "./people/ana.md": (1, 7),
    "ana#Work": (3, 5), "people/ana.md#home": (6, 7),
    "/people/ana.md": (1, 7),
}  # fmt: skip


async def test_read_takes_what_any_tool_cites(folder, index):
    (folder / "people").mkdir()
    (folder / "people" / "ana.md").write_text("# Ana\n\n## Work\nPilot\n\n## Home\nLima\n", "utf-8")
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        for target, (first, last) in CITED.items():
            part = (await client.call_tool("read", {"path": target})).structured_content
            assert (part["path"], part["from_line"], part["to_line"]) == (
                "people/ana.md",
                first,
                last,
            ), target
        assert (await text_of(client, "read", path="[[Ana#Work]]", lines=2)).startswith(
            "## Work\nPilot\n\n(lines 3 to 4"
        )
        for target, error in {
            "[[Bob]]": "There is no note '[[Bob]]'", "[[Ana#Dogs]]": "no heading 'Dogs'",
            "people/ana.md#L9": "has no line 9", "[[.secret]]": "There is no note",
            "people/bob.md#L3": "There is no note", "people/ana.md#L7-L6": "has no lines 7 to 6",
            "note:///../outside.md": "There is no note",
        }.items():  # fmt: skip
            answer = await client.call_tool("read", {"path": target})
            assert answer.is_error
            assert error in answer.content[0].text


async def test_read_says_which_part_of_a_long_note_it_leaves_out(folder, index):
    (folder / "long.md").write_text("x" * 50_000 + "\n" + "y" * 50_000 + "\n", "utf-8")
    (folder / "line.md").write_text("z" * 100_000, "utf-8")
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        long = await text_of(client, "read", path="long.md", lines=2)
        assert long == "x" * 50_000 + (
            "\n\n(lines 1 to 1 of 2. Next: read with path=long.md from_line=2)"
        )
        line = await text_of(client, "read", path="line.md", lines=1)
        assert line.startswith("z" * 64_000 + " …\n\n(lines 1 to 1 of 1")
        short = await text_of(client, "read", path="line.md")
        assert len(short) < 2500
        hint = "read with lines=1 returns more of the line"
        assert short.endswith(f" …\n\n(lines 1 to 1 of 1; {hint})")


async def test_several_queries_are_asked_at_once(index):
    async with mcp.Client(mcp_server.NotesServer(index)) as client:

        async def retrieved_paths(*queries, **more):
            answer = await client.call_tool("retrieve", {"queries": list(queries), **more})
            assert not answer.is_error, answer.content
            return [hit["citation"].partition("#")[0] for hit in answer.structured_content["hits"]]

        firsts = [(await retrieved_paths(query))[0] for query in ("carrots", "blue")]
        assert (await retrieved_paths("carrots", "blue"))[
            :2
        ] == firsts  # the best of each question comes first
        assert sorted(firsts) == ["MEMORY.md", "memory/2026-04-09.md"]
        assert (await retrieved_paths("vegetables that a pet eats"))[0] == "memory/2026-04-09.md"
        assert await retrieved_paths("carrots", "blue", path="memory/") == ["memory/2026-04-09.md"]
        assert len(await retrieved_paths("carrots", "blue", max_results=1)) == 1
        twice = await retrieved_paths("carrots", "color", "Cookie carrots")
        assert twice[0] == "memory/2026-04-09.md"
        assert (await client.call_tool("retrieve", {"queries": []})).is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "retrieve",
            {"query": "x", "folder": "a"},
            "`retrieve` has no parameter `folder`. Its parameters are: ",
        ),
        ("list", {"verbose": True}, "`list` has no parameter `verbose`. Its parameters are: path."),
    ],
)
async def test_what_a_tool_does_not_take_is_refused_by_its_name(index, tool, arguments, said):
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert said in answer.content[0].text


async def test_the_list_leaves_out_what_could_not_be_read(folder, index):
    (folder / "binary.md").write_bytes(b"\0\0")
    index.refresh()
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        assert (await text_of(client, "list")).startswith("MEMORY.md\nmemory/2026-04-09.md\n\n")
