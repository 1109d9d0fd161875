"""The MCP server of the command line.

How it ends while the notes are being indexed, and whose settings it obeys.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from mcp_clients import STORAGE, mcp, stdio_client, text_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.memory.digest import NOTHING

pytestmark = pytest.mark.process

ENVIRONMENT = ("PYTHONPATH", "XDG_CONFIG_HOME", STORAGE)
SLOW = """
import sys, time
from llama_index_contextual.app.cli import main
from llama_index_contextual.app import ContextualIndex
ContextualIndex.refresh = lambda *_, **__: time.sleep(120)  # a model that takes minutes
main()
"""
FIRST = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}}  # fmt: skip  # noqa: E501


def served(folder, *options):
    command = [sys.executable, "-c", SLOW, "mcp", "--folder", str(folder), *options]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ends_soon(process, stop):
    """Return its exit code, if it does not wait for the refresh, which takes minutes."""
    try:
        stop()
        process.wait(60)
        assert b"Traceback" not in process.stderr.read()
        return process.returncode
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", ["auto", "wait"])
@pytest.mark.parametrize("how", ["closed input", "Ctrl-C"])
def test_a_client_that_leaves_waits_for_no_refresh(folder, how, mode):
    process = served(folder, "--refresh", mode)
    ask = {"name": "list", "arguments": {}}
    for message in (
        FIRST,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": ask,
        },  # with "wait" it waits for the refresh
    ):
        process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    time.sleep(0.5)
    ends_soon(
        process,
        process.stdin.close
        if how == "closed input"
        else lambda: process.send_signal(signal.SIGINT),
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_server_over_http_ends_at_once(folder, unused_tcp_port, number, code):
    process = served(folder, "--transport", "http", "--port", str(unused_tcp_port))
    assert b"ready" in process.stderr.readline()
    time.sleep(0.5)
    # uvicorn raises the signal again when it has ended; where asyncio has nothing left to interrupt
    # by then, that is 0.
    assert ends_soon(process, lambda: process.send_signal(number)) in {code, 0}


async def test_a_storage_brings_the_settings_of_its_folder(folder, tmp_path):
    storage, elsewhere = tmp_path / "storage", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ContextualIndex.open(folder, storage=storage) as index:
        index.refresh()
    (folder / "contextual.toml").write_text("[memory]\nmin_relevance = 1.0\n", "utf-8")
    (elsewhere / "contextual.toml").write_text("[memory]\nmin_relevance = -1\n", "utf-8")
    command = ["-m", "llama_index_contextual"]
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=[*command, "mcp", "--storage", str(storage)],
        cwd=elsewhere,
        env={
            name: os.environ.get(name, "")
            for name in ("PYTHONPATH", "XDG_CONFIG_HOME", "LLAMA_INDEX_CONTEXTUAL_STORAGE")
        },
    )
    async with mcp.Client(stdio_client(parameters)) as client:
        digest = await text_of(client, "memory_context", message="what does JC's dog love?")
        assert digest.startswith(NOTHING)
    asked = [
        sys.executable,
        *command,
        "context",
        "what does JC's dog love?",
        "--storage",
        str(storage),
    ]
    done = subprocess.run(  # noqa: ASYNC221, S603
        asked, cwd=elsewhere, capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.startswith(NOTHING)
