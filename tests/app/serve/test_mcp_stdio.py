"""The MCP server as a process of its own, over standard input and output."""

import asyncio
import json
import os
import subprocess
import time

import pytest
from mcp_clients import READING, mcp, stdio, stdio_client, text_of, wait_for

from llama_index_contextual.memory.digest import HEADER, NOTHING

pytestmark = pytest.mark.process


async def test_a_client_over_stdio(folder):
    async with mcp.Client(stdio_client(stdio(folder))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READING
        assert (
            sum(
                len(json.dumps(tool.input_schema)) + len(tool.description)
                for tool in tools.values()
            )
            <= 6000
        )

        await wait_for(client, "carrots", "Cookie")
        deadline, asked = time.monotonic() + 120, {"message": "what does JC's dog love?"}
        while "being indexed" in (digest := await text_of(client, "memory_context", **asked)):
            assert time.monotonic() < deadline  # the answer is there before the refresh has ended
            await asyncio.sleep(0.2)
        assert digest == f"{HEADER}\n- [memory/2026-04-09.md#L1-L3] - JC's dog Cookie loves carrots"
        assert await text_of(client, "memory_context", message="hola") == NOTHING
        answer = await client.call_tool("retrieve", {"query": "carrots", "max_results": 1})
        assert answer.structured_content["hits"][0]["citation"] == "memory/2026-04-09.md#L1-L3"

        (folder / "memory" / "2026-04-10.md").write_text(
            "# Friday\n\nMarta moved to Valencia.\n", "utf-8"
        )
        await wait_for(client, "Marta Valencia", "Marta moved to Valencia.")
        (folder / "memory" / "2026-04-10.md").unlink()
        deadline = time.monotonic() + 120
        while "moved to Valencia" in await text_of(client, "retrieve", query="Marta Valencia"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

        for number in range(200):
            message = "what does JC's dog love?" if number % 2 else "thanks"
            assert (HEADER in await text_of(client, "memory_context", message=message)) == bool(
                number % 2
            )


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
from llama_index_contextual.app import ContextualIndex
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
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test",
            "version": "0"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
            "name": "read", "arguments": {"path": "memory/2026-04-09.md"}}},
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
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    lines += [json.loads(line) for line in output.splitlines()]
    assert {line["id"] for line in lines} == {1, 2}
    assert "carrots" in json.dumps(lines)
    assert b"noise while opening" in errors


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_clients_of_several_protocol_versions_list_and_call_the_tools(folder, version):
    parameters = stdio(folder)
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **parameters.env},
    )

    async def ask(number, method, **values):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": values}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert answer["id"] == number
        return answer["result"]

    try:
        client = {"clientInfo": {"name": "test", "version": "0"}, "capabilities": {}}
        began = await ask(1, "initialize", protocolVersion=version, **client)
        assert began["protocolVersion"] == version
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        listed = await ask(2, "tools/list")
        assert {tool["name"] for tool in listed["tools"]} == READING
        read = await ask(3, "tools/call", name="read", arguments={"path": "MEMORY.md:3"})
        assert read["content"][0]["text"].startswith("Color preference: blue")
    finally:
        process.kill()
        await process.wait()
