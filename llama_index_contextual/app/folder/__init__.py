"""A folder of documents: which files are read, as what, and how each format becomes Markdown."""

from llama_index_contextual.app.folder.files import (
    MOST_BYTES,
    UNREAD,
    FileText,
    decode,
    read_file,
)
from llama_index_contextual.app.folder.folders import Folders
from llama_index_contextual.app.folder.vault import VAULT, without_comments

__all__ = [
    "MOST_BYTES",
    "UNREAD",
    "VAULT",
    "FileText",
    "Folders",
    "decode",
    "read_file",
    "without_comments",
]
