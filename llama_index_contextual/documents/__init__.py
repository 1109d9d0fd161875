"""What a folder is read as: which of its files count, and what each becomes, converted where it is no text."""

from llama_index_contextual.documents.files import FileRules
from llama_index_contextual.documents.reader import DocumentReader

__all__ = ["DocumentReader", "FileRules"]
