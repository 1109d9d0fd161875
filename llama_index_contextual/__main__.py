"""``llama-index-contextual``, and ``python -m llama_index_contextual``: the command line of the application."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line, or name the extra that brings it; Ctrl-C ends it with one line, also while it imports."""
    gc.set_threshold(100_000, 50, 100)  # imports make objects that stay; to look through them took a tenth of the start
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from llama_index_contextual.errors import MissingExtraError, needs

    try:
        with needs("The application", "app"):
            from llama_index_contextual.app.cli import main as run_command_line
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    signal.signal(signal.SIGINT, before)
    run_command_line()


def _end(*_: Any) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
