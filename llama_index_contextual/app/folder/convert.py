"""``DocumentReader``: documents of all formats as LlamaIndex documents, one for each page."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import Document, MediaResource

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.folder.process import (
    MEGABYTES,
    SECONDS,
    ConversionProcess,
    ConverterCrashedError,
)
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError, MissingExtraError, amount, whole
from llama_index_contextual.utils.text import MARKDOWN_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.storage.kvstore.types import BaseKVStore

COLLECTION: Final = "conversions"  # in the key-value store
# Shown to an embedding; other metadata do not describe the subject of a text.
_EMBEDDED: Final = frozenset({metadata.TITLE, "subject"})
_PROCESS: Final = ConversionProcess()  # of this process


class DocumentReader(BaseReader):
    """Read PDF, Office, OpenDocument, HTML, EPUB, mail, notebooks and other converted formats.

    Each page, slide or sheet is a document of Markdown with its tables.
    ``HeadingAwareMarkdownNodeParser`` carries headings from page to page. Nothing of a document is
    run or fetched: it is converted in a process of its own, with limits of time, memory and size.

    Args:
        seconds: The most time that a file may take.
        megabytes: The most memory.
        conversions: A LlamaIndex key-value store. What is in it is not converted again, and needs
            no converter.
        keep: Whether new conversions are written to it.

    Raises:
        SettingError: A limit is not positive.

    Examples:
        >>> from llama_index.core import SimpleDirectoryReader
        >>> reader = DocumentReader()
        >>> loader = SimpleDirectoryReader(
        ...     input_files=["examples/documents/mail.eml"], file_extractor={".eml": reader}
        ... )
        >>> [page.metadata["subject"] for page in loader.load_data()]
        ['Dredging of the harbour']
    """

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        megabytes: int = MEGABYTES,
        conversions: BaseKVStore | None = None,
        keep: bool = True,
    ) -> None:
        self._seconds = amount("seconds", seconds)
        self._megabytes = whole("megabytes", megabytes)
        self.conversions = conversions
        self.keep = keep

    def load_data(
        self, file: Path | str, extra_info: dict[str, Any] | None = None, fs: Any = None
    ) -> list[Document]:
        """Return the parts of a file.

        Pages of a PDF or of Word, slides, sheets, cells of a notebook, chapters.

        Args:
            file: It must be on this machine.
            extra_info: More metadata of all parts.
            fs: Must be None or local.

        Returns:
            Documents with ``page`` and ``page_label``, or ``slide``, ``sheet``, ``cell``; and with
            ``title``, ``author``, ``created``, ``modified`` of the document, ``subject``,
            ``sender``, ``to``, ``date`` of mail. The first has ``left_out`` where the text lacks
            something of the file: ``"3 pictures; 1 script"``.

        Raises:
            DocumentError: It is damaged, encrypted, empty, or takes more than the limits.
            MissingExtraError: The converter is not installed.
        """
        del fs
        path = Path(file)
        try:
            data = read_file(path)
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
        return self.documents(path, data, {"file_name": path.name, **(extra_info or {})})

    def documents(
        self, path: Path, data: bytes, extra_info: Mapping[str, Any] | None = None
    ) -> list[Document]:
        """Return the parts of a file whose bytes were read already; see :meth:`load_data`."""
        converted = self.converted(path, data)
        extra_info = extra_info or {}
        shared = {**converted["metadata"], **extra_info}
        left_out = shared.pop(metadata.LEFT_OUT, "")
        embedded = _EMBEDDED.union(extra_info)
        documents: list[Document] = []
        for text, place in converted["parts"]:
            values = {**shared, **place}
            hidden = [metadata.LEFT_OUT]
            if place:
                values[metadata.PAGE_LABEL] = str(*place.values())
                hidden.append(metadata.PAGE_LABEL)
            if left_out and not documents:
                values[metadata.LEFT_OUT] = left_out
            document = Document(
                text_resource=MediaResource(text=text, mimetype=MARKDOWN_TYPE),
                metadata=values,
                excluded_embed_metadata_keys=[key for key in values if key not in embedded],
                excluded_llm_metadata_keys=hidden,
            )
            documents.append(document)
        return documents

    def converted(self, path: Path, data: bytes) -> dict[str, Any]:
        """Return a file's text and metadata: as they were kept, or converted now.

        Raises:
            DocumentError: It cannot be converted.
            MissingExtraError: The converter is not installed.
        """
        suffix = formats.suffix_of(path.name)
        known = formats.known_formats()
        if suffix not in known:
            raise DocumentError(
                f"{suffix or 'A file without a suffix'} cannot be converted. "
                f"Supported suffixes: {', '.join(known)}."
            )
        digest = hashlib.sha256(data).hexdigest()
        key = f"{digest}{suffix} {formats.REVISION}"
        kept: dict[str, Any] | None = None
        if self.conversions is not None:
            kept = self.conversions.get(key, COLLECTION)
        limits = [self._seconds, self._megabytes]
        if kept is None or not _is_conversion(kept) or kept.get("limits", limits) != limits:
            if known[suffix].packages and not formats.has_extra():
                raise MissingExtraError(
                    f"what reads {suffix} files ({known[suffix].name})", formats.EXTRA
                )
            kept = self._convert(path, suffix)
            if not _contains(path, data):  # another file's text would be kept for these bytes
                raise DocumentError("it changed while it was converted. Refresh again.")
            if self.conversions is not None and self.keep:
                self.conversions.put(key, kept, COLLECTION)
        if "problem" in kept:
            raise ConverterCrashedError(kept["problem"])
        return kept

    def _convert(self, path: Path, suffix: str) -> dict[str, Any]:
        try:
            converted = _PROCESS.convert(path.absolute(), suffix, self._seconds, self._megabytes)
        except ConverterCrashedError as error:  # it would take as long each time
            return {"problem": str(error), "limits": [self._seconds, self._megabytes]}
        if not any(text.strip() for text, _ in converted["parts"]):
            raise DocumentError("it holds no text. Ignore it.")
        return converted


def _contains(path: Path, data: bytes) -> bool:
    try:
        return read_file(path, len(data)) == data
    except DocumentError:  # it is larger now, or no longer there
        return False


def _is_conversion(kept: Mapping[str, Any]) -> bool:
    """Tell whether a stored value is a conversion; a store may be shared, so it may be anything."""
    if isinstance(kept.get("problem"), str):
        return True
    parts = kept.get("parts")
    return (
        isinstance(kept.get("metadata"), dict)
        and isinstance(parts, list)
        and all(map(_is_part, parts))
    )


def _is_part(part: object) -> bool:
    match part:
        case [str(), dict()]:
            return True
    return False
