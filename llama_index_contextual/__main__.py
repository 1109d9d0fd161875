"""``llama-index-contextual``, and ``python -m llama_index_contextual``.

The command line of the application.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line, or name the extra that brings it.

    Ctrl-C ends the process with one line at once, also during imports and at the end of the
    interpreter, where a ``KeyboardInterrupt`` would be a traceback or nothing. A command with work
    to finish has it raised in that work
    (:func:`llama_index_contextual.app.cli.options.interruptible`).
    """
    # Imports make objects that stay. Looking through them took a tenth of the start and a fifth of
    # the end.
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
        # CPython takes the handler away after that.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    from llama_index_contextual.utils.errors import MissingExtraError, needs

    try:
        with needs("The application", "app"):
            import pathspec  # noqa: F401  each command needs it; LlamaIndex brings click, too

            from llama_index_contextual.app.cli import main as run_command_line
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run_command_line()


def _end(*_: Any) -> None:
    os.write(2, b"interrupted\n")  # a signal may come while standard error is written
    os._exit(130)


if __name__ == "__main__":
    main()
