"""The preview of a file, as the command line makes it."""

from pathlib import Path

from llama_index_contextual.app.serve.html import preview_nodes


def preview(index, path):
    """Return the chunks that a file would have in an index."""
    settings = index.settings
    _, documents = settings.folder_reader.load_file(Path(index.folder) / path)
    return preview_nodes(documents, settings.parser, settings.contexts)
