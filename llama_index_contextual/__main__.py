"""Run the application's command line, for example as ``python -m llama_index_contextual``."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line. If the application is not installed, exit and name its extra.

    Ctrl-C prints one line and ends the process immediately, even during imports and interpreter
    shutdown, where a ``KeyboardInterrupt`` would print a traceback or be swallowed. Commands that
    must finish their work turn Ctrl-C back into a ``KeyboardInterrupt`` while they do
    (:func:`llama_index_contextual.app.cli.options.interruptible`).
    """
    # Imported objects are never freed. Scanning them for garbage took a tenth of the startup time
    # and a fifth of the shutdown time.
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
        # During shutdown CPython restores the default handler, so ignore the signal before that.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    from llama_index_contextual.utils.errors import MissingExtraError, needs

    try:
        with needs("The application", "app"):
            # Without the extra, click can still be installed (by LlamaIndex), but not pathspec.
            import pathspec  # noqa: F401

            from llama_index_contextual.app.cli import main as run_command_line
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run_command_line()


def _end(*_: Any) -> None:
    # The signal can arrive during a write to sys.stderr, which must not be entered twice.
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
