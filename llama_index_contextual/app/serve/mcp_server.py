"""Memory as an MCP server: a thin shell over ``ContextualIndex`` and ``MemoryContext``.

Over stdio nothing but the protocol goes to standard output. Over HTTP it listens on this machine only, because it has
no password. Its tools only read.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index_contextual.app.index import ContextualIndex, is_refreshing
from llama_index_contextual.errors import SettingError, listener, needs, whole

if TYPE_CHECKING:
    from pathlib import Path

    from llama_index_contextual.app.serve.mcp_tools import NotesServer
    from llama_index_contextual.app.settings.schema import Refreshing
    from llama_index_contextual.memory import MemorySettings


DEFAULT_PORT: Final = 8765
_SWITCH: Final = 0.001  # seconds; while a refresh computes, an answer gets its turn five times as soon as by default
_SESSION_IDLE: Final = 900.0  # seconds after which an HTTP session without requests ends
_MOST_SESSIONS: Final = 100
_LOOPBACK: Final = ("127.0.0.1", "localhost")


def serve(
    folder: str | Path | None,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    port: int = DEFAULT_PORT,
    settings: MemorySettings | None = None,
    refresh: Refreshing | None = None,
    **options: Any,
) -> None:
    """Serve a folder of notes until the client leaves (stdio) or the process is stopped (Ctrl-C).

    A refresh that runs then is not waited for; what it has finished is kept. Over stdio Ctrl-C ends the process.

    Args:
        folder: The notes. None is the folder that ``storage=`` was made from.
        transport: ``"stdio"``, or ``"http"`` for streamable HTTP at ``http://127.0.0.1:PORT/mcp``.
        port: 1 to 65535.
        settings: How memory answers. Default: what the configuration of the index says.
        refresh: ``"auto"`` brings the index up to date in the background; an answer waits for that at most 0.1 s and
            says what is not indexed yet. ``"never"`` only says so. ``"wait"`` waits. Default: what the configuration
            of the index says, else ``"auto"``.
        **options: Of ``ContextualIndex.open``.

    Raises:
        MissingExtraError: The ``app`` extra is not installed.
        SettingError: The port is taken.
        ContextualError: The index cannot be opened.
    """
    if transport not in ("stdio", "http"):
        raise SettingError(f"transport={transport!r} is not known. Cure: 'stdio' or 'http'")
    sys.setswitchinterval(_SWITCH)
    port = whole("port", port, most=65535)
    # Until the protocol takes over standard output, whatever a library prints there would break it.
    with contextlib.redirect_stdout(sys.stderr):
        index = ContextualIndex.open(folder, **options)
        mode = refresh or index.settings.configuration["memory.refresh"] or "auto"
        server = build_server(index, settings, refresh=mode)
    gc.collect()
    gc.freeze()  # all that was imported: to look through it for garbage made every sixtieth answer or so .1 s later
    try:
        if transport == "stdio":
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # the SDK would go on waiting for a line of input
            server.run("stdio")
        else:
            _serve_http(server, port)
    finally:
        gc.unfreeze()
        if not is_refreshing():  # else it would lose the store under its feet
            index.close()


def _serve_http(server: NotesServer, port: int) -> None:
    """Serve on a port that is taken before it is announced, to clients that name this machine and to no web page."""
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    hosts = [f"{name}:{port}" for name in _LOOPBACK]
    app = server.streamable_http_app(
        host=_LOOPBACK[0],
        session_idle_timeout=_SESSION_IDLE,
        max_sessions=_MOST_SESSIONS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"http://{name}" for name in hosts]
        ),
    )
    with listener(_LOOPBACK[0], port) as listening:
        sys.stderr.write(f"ready at http://{_LOOPBACK[0]}:{port}/mcp\n")
        sys.stderr.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)).run(sockets=[listening])


def build_server(
    index: ContextualIndex, settings: MemorySettings | None = None, *, refresh: Refreshing = "auto"
) -> NotesServer:
    """The server over an open index, to be run or to be tested in-process.

    Args:
        index: The notes.
        settings: How memory answers.
        refresh: As for :func:`serve`.

    Raises:
        MissingExtraError: The ``app`` extra is not installed.
        SettingError: A setting cannot work.
    """
    with needs("The MCP SDK (mcp 2)", "app"):
        import mcp.server.mcpserver  # noqa: F401  version 1 has none

        from llama_index_contextual.app.serve.mcp_tools import NotesServer
    return NotesServer(index, settings, refresh)
