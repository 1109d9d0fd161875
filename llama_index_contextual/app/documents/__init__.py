"""What a folder is read as: which of its files count, and what each becomes, converted where it is no text."""

from llama_index_contextual.app.converters.conversion import suffix_of
from llama_index_contextual.app.documents.files import (
    SOURCE_INCLUDE,
    Discovery,
    FileRules,
    Problem,
    default_include,
    stamp_of,
    summary_of_skipped,
)
from llama_index_contextual.app.documents.folders import Folders, collections_of, named_folders
from llama_index_contextual.app.documents.reader import DocumentReader
from llama_index_contextual.app.documents.sources import (
    UNREAD,
    Reading,
    Source,
    SourceContent,
    check_source,
    gather,
    read_all,
    read_bytes,
    readable_documents,
    settled,
    sha256_of,
)

__all__ = ["DocumentReader", "FileRules"]  # what users import
