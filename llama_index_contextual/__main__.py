"""``llama-index-contextual``, and ``python -m llama_index_contextual``: the command line of the application."""

from __future__ import annotations

import sys

from llama_index_contextual.errors import MissingExtraError, needs


def main() -> None:
    """Run the command line, or name the extra that brings it."""
    try:
        with needs("The application", "app"):
            from llama_index_contextual.app.cli import main as run_command_line
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run_command_line()


if __name__ == "__main__":
    main()
