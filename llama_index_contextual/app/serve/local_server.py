"""Serve an application over HTTP on this machine alone."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from starlette.applications import Starlette

LOOPBACK = ("127.0.0.1", "localhost")
_ARENA_MAX = -8  # glibc's M_ARENA_MAX


def limit_arenas() -> None:
    """Let all threads share two memory arenas of glibc.

    With an arena per thread, each would keep as much memory as the thread ever needed.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def run_app(app_of: Callable[[int], Starlette], port: int, place: str) -> None:
    """Serve an application until the process is stopped, and write its address to stderr.

    Args:
        app_of: Creates the application for a port.
        port: The port to listen on; 0 for a free one.
        place: The part of the address after the port.

    Raises:
        SettingError: The port is in use or not allowed.
    """
    import uvicorn

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK[0], port))
        except OSError as error:
            message = f"`port` {port} cannot be used at {LOOPBACK[0]} ({error.strerror})."
            raise SettingError(f"{message} Choose another port.") from error
        listening.listen()
        port = listening.getsockname()[1]
        config = uvicorn.Config(app_of(port), log_level="critical", timeout_graceful_shutdown=1)
        sys.stderr.write(f"ready at http://{LOOPBACK[0]}:{port}{place}\n")
        sys.stderr.flush()
        uvicorn.Server(config).run(sockets=[listening])
