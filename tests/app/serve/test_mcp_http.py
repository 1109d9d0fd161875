"""The MCP server over HTTP on loopback: who can reach it, and who cannot."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from mcp_clients import mcp, stdio, text_of, wait_for

from llama_index_contextual.app.serve import mcp_server
from llama_index_contextual.utils.errors import SettingError


@contextlib.asynccontextmanager
async def http_server(folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parameters = stdio(folder, options=f", transport='http', port={port}")
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        env={**os.environ, **parameters.env},
        stderr=subprocess.PIPE,
    )
    try:
        while b"ready at" not in (line := await asyncio.wait_for(process.stderr.readline(), 60)):
            assert line, "the server ended"
        assert line == f"ready at http://127.0.0.1:{port}/mcp\n".encode()
        yield port
    finally:
        process.kill()  # one that waits for its standard error would not end otherwise
        await process.wait()


async def status_of(port, **headers):
    """Return the status of a request to start a session as a web page might send it."""
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    known = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/mcp", json.dumps(body).encode(), {**known, **headers}
    )
    try:
        with await asyncio.to_thread(urllib.request.urlopen, request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.process
async def test_over_http_on_loopback(folder):
    async with http_server(folder) as port:
        async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
            await wait_for(client, "carrots", "Cookie")
            assert "carrots" in await text_of(
                client, "memory_context", message="what does JC's dog love?"
            )
        assert await status_of(port) == 200
        assert (
            await status_of(port, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")
            == 200
        )
        # a web page that lets its own name point here must not reach the notes
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", f"127.0.0.2:{port}"):
            assert await status_of(port, Host=host) in {403, 421}, host
        for origin in (
            "http://evil.example",
            f"http://evil.example:{port}",
            "null",
            "http://127.0.0.1:1",
        ):
            assert await status_of(port, Origin=origin) == 403, origin


@pytest.mark.process
async def test_clients_that_leave_in_the_middle_of_a_request_stop_no_answer(folder):
    """Standard error is a pipe that nobody reads, as with many programs that start a server."""
    async with http_server(folder) as port:
        cut = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        cut += "Accept: application/json, text/event-stream\r\nContent-Length: 99\r\n\r\n{"
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(cut.encode())
        assert await status_of(port) == 200


def test_a_port_that_is_taken_is_named(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingError, match=r"`port` \d+ cannot be used .* Choose another port"):
            mcp_server.serve(folder, transport="http", port=taken.getsockname()[1])
