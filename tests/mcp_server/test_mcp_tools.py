"""The tools and resources of the MCP server that search and read notes, asked in this process."""

import json
import sys
from pathlib import Path

import pytest
from mcp_clients import mcp, text_of

from llama_index_contextual.app import mcp_server
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.errors import MissingExtraError
from llama_index_contextual.memory import MemorySettings
from llama_index_contextual.memory.digest import NOTHING


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("memory_context", {}, "message"),
        ("memory_context", {"message": 3}, "message"),
        ("memory_context", {"message": "does JC like it?", "format": "xml"}, "format"),
        ("memory_search", {"query": ""}, "query"),
        ("memory_search", {"query": "x", "max_results": 0}, "max_results"),
        ("memory_search", {"query": "x", "max_results": 10_000}, "max_results"),
        ("memory_search", {"query": "x" * 2001}, "query"),
        ("memory_search", {"query": "x", "since": "soonish"}, "'soonish' is no date"),
        ("memory_search", {"query": "x", "since": "2026-02-01", "until": "2026-01-01"}, "wrong order"),
    ],
)
async def test_malformed_arguments_are_named_and_harm_nothing(index, tool, arguments, named):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert named in result.content[0].text
        assert "carrots" in await text_of(client, "memory_search", query="carrots")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, {"MEMORY.md", "memory/2026-04-09.md"}),
        ({"path": "Memory/"}, {"memory/2026-04-09.md"}),
        ({"tag": "#Facts"}, {"MEMORY.md"}),
        ({"since": "2026-04-09", "until": "2026-04-09"}, {"memory/2026-04-09.md"}),
        ({"since": "2026-04-10"}, set()),
        ({"path": "memory/", "tag": "facts"}, set()),
    ],
)
async def test_a_search_can_be_confined_to_some_notes(folder, index, filters, found):
    (folder / "MEMORY.md").write_text("---\ntags: [facts, colours]\n---\n# Facts\n\nColor: blue\n", "utf-8")
    index.refresh()
    async with mcp.Client(mcp_server.build_server(index)) as client:
        answer = json.loads(await text_of(client, "memory_search", query="carrots", format="json", **filters))
        assert {entry["path"] for entry in answer["entries"]} == found


async def test_a_search_says_which_words_no_note_holds(index):
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        said = await text_of(client, "memory_search", query="zzzqq")
        assert said.startswith("(No relevant prior context for this message.)\n(Search: left out ")
        assert said.endswith('(Search: the index does not know "zzzqq".)')
        for query in ("carrots", "carrots -zebra", "path:MEMORY.md carrots"):
            assert "does not know" not in await text_of(client, "memory_search", query=query)


async def test_a_client_is_told_why_there_is_no_answer(folder):
    with ContextualIndex.open(folder) as index:
        async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
            asked = [("memory_search", {"query": "x"}), ("memory_context", {"message": "JC's dog, is it?"})]
            for tool, arguments in asked:
                result = await client.call_tool(tool, arguments)
                assert result.is_error
                assert "there is no index in" in result.content[0].text
                assert "Cure: " in result.content[0].text
    assert not (folder / ".contextual").exists()


async def test_small_talk_touches_neither_folder_nor_index(index, monkeypatch):
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        monkeypatch.setattr(index, "freshness", None)
        monkeypatch.setattr(index, "documents", None)
        assert await text_of(client, "memory_context", message="hola") == NOTHING


async def test_notes_are_listed_and_read_in_parts(folder, index):
    (folder / "long.md").write_text("".join(f"line {number}\n" for number in range(1, 301)), "utf-8")
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        assert await text_of(client, "list") == "MEMORY.md\nlong.md\nmemory/2026-04-09.md"
        assert await text_of(client, "list", path="memory/") == "memory/2026-04-09.md"
        part = await text_of(client, "get", path="long.md", from_line=10, lines=2)
        assert part == "line 10\nline 11\n\n(lines 10 to 11 of 300)"
        assert (await text_of(client, "get", path="long.md")).endswith("line 200\n\n(lines 1 to 200 of 300)")
        blocks = (await client.call_tool("multi_get", {"glob": "m*"})).content
        assert [block.text for block in blocks] == [
            "memory/2026-04-09.md\n\n# Thursday\n\n- JC's dog Cookie loves carrots\n"
        ]
        listed = (await client.list_resources()).resources
        assert [str(one.uri) for one in listed][2] == "note:///memory/2026-04-09.md"
        read = await client.read_resource(str(listed[2].uri))
        assert "Cookie" in read.contents[0].text
        held = json.loads(await text_of(client, "status"))
        assert (held["documents"], held["chunks"], held["freshness"]["changed"]) == (2, 2, 1)
        for tool, arguments in [("get", {"path": "../outside.md"}), ("get", {"path": ".secret.md"}),
                                ("multi_get", {"glob": "*secret*"})]:  # fmt: skip
            assert (await client.call_tool(tool, arguments)).is_error


async def test_the_status_names_the_files_that_cannot_be_indexed(folder, index):
    (folder / "broken.md").write_bytes(b"\x00\x01\x02" * 50)
    index.refresh()
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        held = json.loads(await text_of(client, "status"))
        assert held["failed"] == 2, "the link out of the folder, too"
        assert held["reasons"] == index.status().pending.failed
        assert held["reasons"]["broken.md"].startswith("it is binary")


async def test_a_note_is_got_by_the_path_that_a_citation_shows(folder, index):
    names = {"plan [old].md": "The walrus retires.", "new\nline.md": "The heron moved."}
    for name, text in names.items():
        (folder / name).write_text(f"# Page\n\n{text}\n", "utf-8")
    index.refresh()
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        assert (await text_of(client, "list")).splitlines() == [
            "MEMORY.md",
            "memory/2026-04-09.md",
            "new line.md",
            "plan %5Bold%5D.md",
        ]
        for name, text in names.items():
            answer = json.loads(await text_of(client, "memory_search", query=text, max_results=1, format="json"))
            cited = answer["entries"][0]["citation"].partition("#")[0]
            assert cited != name
            assert await text_of(client, "get", path=cited) == await text_of(client, "get", path=name)
            assert text in await text_of(client, "get", path=cited)
        assert await text_of(client, "list", path="plan %5Bold%5D.md") == "plan %5Bold%5D.md"
        assert "The walrus retires." in await text_of(client, "multi_get", glob="plan %5B*")


async def test_a_part_that_cannot_be_read_is_said_to_be_that(folder, index):
    (folder / "binary.md").write_bytes(b"\0\0")
    (folder / "empty.md").touch()
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        for arguments, said in [
            ({"path": "binary.md"}, "the note 'binary.md' is not a text file"),
            ({"path": "MEMORY.md", "from_line": 99}, "from_line=99 is too high: 'MEMORY.md' has 3 lines"),
        ]:
            result = await client.call_tool("get", arguments)
            assert result.is_error
            assert said in result.content[0].text
        assert await text_of(client, "get", path="empty.md") == ""
        assert await text_of(client, "multi_get", glob="binary.md") == "binary.md\n\n(no text that can be read)"


async def test_json_names_headings_and_context(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        [entry] = json.loads(await text_of(client, "memory_search", query="carrots", max_results=1, format="json"))[
            "entries"
        ]
    assert entry["header_path"] == "Thursday"
    assert "2026" in entry["context"]


async def test_a_long_message_is_read_in_part_and_says_so(index):
    long = "what does JC's dog love? " + "carrots " * 100_000
    async with mcp.Client(mcp_server.build_server(index)) as client:
        shown = await text_of(client, "memory_context", message=long)
        assert "Cookie loves carrots" in shown
        assert "(Message: only its first 16,384 characters were read.)" in shown.splitlines()


async def test_a_note_is_read_by_the_rules_of_the_index(folder):
    with ContextualIndex.open(folder, files=FileRules(exclude=("people/",))) as index:
        (folder / "people").mkdir()
        (folder / "people" / "marta.md").write_text("private", "utf-8")
        async with mcp.Client(mcp_server.build_server(index)) as client:
            with pytest.raises(mcp.MCPError):
                await client.read_resource("note:///people/marta.md")


async def test_a_note_can_be_read_whole_and_nothing_else(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        [content] = (await client.read_resource("note:///memory/2026-04-09.md")).contents
        assert content.text == "# Thursday\n\n- JC's dog Cookie loves carrots\n"
        for path in ("../outside.md", "%2e%2e/outside.md", "/etc/passwd", ".secret.md", "link.md", "memory", "none.md",
                     ".contextual/manifest.json"):  # fmt: skip
            with pytest.raises(mcp.MCPError):
                await client.read_resource(f"note:///{path}")


async def test_switched_off_it_says_so_in_one_line(index):
    async with mcp.Client(mcp_server.build_server(index, MemorySettings(enabled=False))) as client:
        shown = await text_of(client, "memory_context", message="what does JC's dog love?")
        assert shown == "(Memory is switched off (enabled is false).)"


def test_without_the_sdk_the_extra_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(MissingExtraError, match=r"\[app\]"):
        mcp_server.build_server(index)


async def test_a_page_of_a_document_is_read_by_its_citation_and_kinds_are_counted(folder, index):
    source = Path(__file__).parents[2] / "examples" / "documents"
    for name in ("report.pdf", "fees.xlsx"):
        (folder / name).write_bytes((source / name).read_bytes())
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        listed = await text_of(client, "list")
        assert listed.splitlines()[-1] == "(2 md, 1 xlsx, 1 pdf)"
        page = await text_of(client, "get", path="report.pdf#page=2")
        assert page.strip() == index.read("report.pdf#page=2").strip() != index.read("report.pdf#page=1").strip()
        result = await client.call_tool("get", {"path": "report.pdf#page=99"})
        assert result.is_error
        assert "'report.pdf' has no page '99'" in result.content[0].text


async def test_tools_have_titles_only_read_and_describe_their_answers(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.title and tool.description and tool.output_schema for tool in tools.values())
        calls = {
            "memory_context": {"message": "what does JC's dog love?"}, "memory_search": {"query": "carrots"},
            "get": {"path": "MEMORY.md"}, "multi_get": {"glob": "*.md"}, "list": {}, "status": {},
        }  # fmt: skip
        assert set(calls) == set(tools)
        answers = {name: await client.call_tool(name, arguments) for name, arguments in calls.items()}
        for name, answer in answers.items():  # the client holds the data to the schema
            assert answer.structured_content, name
            assert answer.content[0].text
        [hit, *_] = answers["memory_search"].structured_content["entries"]
        assert hit["citation"] == "memory/2026-04-09.md#L1-L3"
        assert answers["list"].structured_content["paths"] == ["MEMORY.md", "memory/2026-04-09.md"]
        assert answers["get"].structured_content["total_lines"] == 3


CITED = {
    "people/ana.md": (1, 7), "[people/ana.md]": (1, 7), "people/ana.md#L3-L4": (3, 4), "people/ana.md#L3-4": (3, 4),
    "[people/ana.md#L5]": (5, 5), "people/ana.md#L6-L99": (6, 7), "[[Ana]]": (1, 7), "[[people/ana]]": (1, 7),
    "[[ana.md|my friend]]": (1, 7), "![[Ana#Work]]": (3, 5), "[[Ana#Home]]": (6, 7), "note:///people/ana.md": (1, 7),
    " people/ana.md#L7-L7 ": (7, 7),
}  # fmt: skip


async def test_get_takes_what_any_tool_cites(folder, index):
    (folder / "people").mkdir()
    (folder / "people" / "ana.md").write_text("# Ana\n\n## Work\nPilot\n\n## Home\nLima\n", "utf-8")
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        for target, (first, last) in CITED.items():
            part = (await client.call_tool("get", {"path": target})).structured_content
            assert (part["path"], part["from_line"], part["to_line"]) == ("people/ana.md", first, last), target
        for target, error in {
            "[[Bob]]": "no note that [[Bob]] means", "[[Ana#Dogs]]": "no heading 'Dogs'",
            "people/ana.md#L9": "from_line=9 is too high", "[[.secret]]": "no note",
            "people/bob.md#L3": "there is no note", "people/ana.md#L7-L6": "names no lines",
            "note:///../outside.md": "there is no note", "/memories/../outside.md": "there is no note",
        }.items():  # fmt: skip
            answer = await client.call_tool("get", {"path": target})
            assert answer.is_error
            assert error in answer.content[0].text


async def test_get_says_what_of_a_long_note_it_leaves_out(folder, index):
    (folder / "long.md").write_text("x" * 50_000 + "\n" + "y" * 50_000 + "\n", "utf-8")
    (folder / "line.md").write_text("z" * 100_000, "utf-8")
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        long = (await client.call_tool("get", {"path": "long.md"})).content[0].text
        assert long == "x" * 50_000 + "\n\n(lines 1 to 1 of 2)"
        line = await client.call_tool("get", {"path": "line.md"})
        assert line.content[0].text.endswith(
            "zz\n\n(lines 1 to 1 of 1; line 1 is cut, it is longer than 64,000 characters)"
        )
        assert line.structured_content["is_cut"]


async def test_several_queries_are_asked_at_once(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:

        async def found(*queries, **more):
            answer = await client.call_tool("memory_search", {"queries": list(queries), **more})
            assert not answer.is_error, answer.content
            return [entry["path"] for entry in answer.structured_content["entries"]]

        both = await found("carrots", {"text": "blue", "by": "words"})
        assert sorted(both) == ["MEMORY.md", "memory/2026-04-09.md"]
        assert await found({"text": "blue", "by": "words"}) == ["MEMORY.md"]
        assert (await found({"text": "vegetables that a pet eats", "by": "meaning"}))[0] == "memory/2026-04-09.md"
        assert await found("carrots", "blue", path="memory/") == ["memory/2026-04-09.md"]
        assert len(await found("carrots", "blue", max_results=1)) == 1
        twice = await found({"text": "carrots", "by": "words"}, {"text": "color", "by": "words"}, "Cookie carrots")
        assert twice[0] == "memory/2026-04-09.md"
        assert (await client.call_tool("memory_search", {"queries": []})).is_error


async def test_an_index_without_vectors_says_that_it_knows_words_only(folder):
    with ContextualIndex.open(folder, embed_model="none", storage=folder.parent / "words") as index:
        index.refresh()
        async with mcp.Client(mcp_server.build_server(index)) as client:
            answer = await client.call_tool("memory_search", {"queries": [{"text": "x", "by": "meaning"}]})
            assert answer.is_error
            assert "this index has no embedding. Cure: by='words'" in answer.content[0].text


async def test_an_error_is_one_sentence_without_links_of_a_library(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        for tool, arguments in [
            ("memory_search", {"query": "x", "max_results": 0}), ("memory_context", {}), ("get", {"path": 3}),
            ("get", {"path": "none.md"}), ("multi_get", {"glob": "none*"}), ("no_such_tool", {}),
            ("memory_search", {"queries": [{"text": "x", "by": "smell"}]}),
        ]:  # fmt: skip
            [content] = (await client.call_tool(tool, arguments)).content
            assert "\n" not in content.text
            assert "http" not in content.text
            assert "Error executing tool" not in content.text


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("memory_search", {"query": "x", "folder": "a"}, "memory_search takes no folder. Cure: query, "),
        ("status", {"verbose": True}, "status takes no verbose. Cure: no argument"),
        ("memory_search", {"queries": [{"query": "x"}]}, "queries.0.text: Field required"),
    ],
)
async def test_what_a_tool_does_not_take_is_refused_by_its_name(folder, index, tool, arguments, said):
    before = {path: path.read_bytes() for path in folder.rglob("*.md")}
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert said in answer.content[0].text
    assert {path: path.read_bytes() for path in folder.rglob("*.md")} == before


async def test_the_list_leaves_out_what_could_not_be_read(folder, index):
    (folder / "binary.md").write_bytes(b"\0\0")
    index.refresh()
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        assert await text_of(client, "list") == "MEMORY.md\nmemory/2026-04-09.md"
        assert not [one for one in (await client.list_resources()).resources if "binary" in one.name]


async def test_what_a_search_leaves_out_is_counted_as_its_note_says(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        answer = await client.call_tool("memory_search", {"query": "zzzqq"})
        [note] = [one for one in answer.structured_content["notes"] if "left out" in one]
        assert f"left out {answer.structured_content['left_out']} hit" in note
        assert json.loads(await text_of(client, "memory_search", query="zzzqq", format="json"))["left_out"] > 0
