"""The preview of a file, as the command line makes it."""

from pathlib import Path

from llama_index_contextual.app.serve.html import preview_of


def preview(index, path):
    """Return the chunks that a file would have in an index."""
    settings = index.settings
    return preview_of(
        *settings.reading.load_file(Path(index.folder) / path), settings.parser, settings.contexts
    )
