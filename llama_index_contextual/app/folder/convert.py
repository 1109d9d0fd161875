"""``DocumentReader``, which reads files of all formats as LlamaIndex documents."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

COLLECTION = "conversions"  # in the key-value store
# The metadata that is embedded. The other keys do not describe the subject of a text.
_EMBEDDED = frozenset({metadata.TITLE, "subject"})
_PROCESS = ConversionProcess()  # shared by all readers


class DocumentReader(BaseReader):
    """Read PDF, Office, OpenDocument, HTML, EPUB, mail, notebooks and other converted formats.

    Each page, slide or sheet becomes a Markdown document that includes its tables.
    ``HeadingAwareMarkdownNodeParser`` carries headings over from page to page. Nothing in a
    document is executed or downloaded. It is converted in a separate process, with limits on time,
    memory and size.

    Args:
        seconds: The maximum time per file.
        megabytes: The maximum memory.
        conversions: A LlamaIndex key-value store with earlier conversions. Files in it are not
            converted again, and do not need a converter.
        keep: Whether to write new conversions to the store.

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
        """Return the parts of a file: pages, slides, sheets, cells of a notebook, or chapters.

        Args:
            file: A file on this machine.
            extra_info: Additional metadata for all parts.
            fs: None, or a local file system.

        Returns:
            Documents with the metadata ``page`` and ``page_label``, or ``slide``, ``sheet`` or
            ``cell``. They also have ``title``, ``author``, ``created`` and ``modified``, or for
            mail ``subject``, ``sender``, ``to`` and ``date``. If the text lacks any content of the
            file, the first document has ``left_out``: ``"3 pictures; 1 script"``.

        Raises:
            DocumentError: The file is damaged, encrypted or empty, or exceeds a limit.
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
        """Return the parts of a file whose bytes were already read. See :meth:`load_data`."""
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
        """Return a file's text and metadata, from the store or by converting it now.

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
        key = f"{hashlib.sha256(data).hexdigest()}{suffix} {formats.REVISION}"
        conversion = self._stored(key)
        if conversion is None:
            if known[suffix].packages and not formats.has_extra():
                raise MissingExtraError(
                    f"the reader for {suffix} files ({known[suffix].name})", formats.EXTRA
                )
            conversion = self._convert(path, suffix)
            if not _contains(path, data):  # the text of other bytes would be stored for these
                raise DocumentError("it changed while it was converted. Refresh again.")
            if self.conversions is not None and self.keep:
                self.conversions.put(key, conversion, COLLECTION)
        if "problem" in conversion:
            raise ConverterCrashedError(conversion["problem"])
        return conversion

    def _stored(self, key: str) -> dict[str, Any] | None:
        """Return an earlier conversion, or None if there is none or it failed with other limits."""
        if self.conversions is None:
            return None
        stored = self.conversions.get(key, COLLECTION)
        if stored is None or not _is_conversion(stored):
            return None
        limits = [self._seconds, self._megabytes]
        return stored if stored.get("limits", limits) == limits else None

    def _convert(self, path: Path, suffix: str) -> dict[str, Any]:
        try:
            converted = _PROCESS.convert(path.absolute(), suffix, self._seconds, self._megabytes)
        except ConverterCrashedError as error:  # store it, since a retry would take as long
            return {"problem": str(error), "limits": [self._seconds, self._megabytes]}
        if not any(text.strip() for text, _ in converted["parts"]):
            raise DocumentError("it contains no text. Ignore it.")
        return converted


def _contains(path: Path, data: bytes) -> bool:
    try:
        return read_file(path, len(data)) == data
    except DocumentError:  # it is now larger, or was deleted
        return False


def _is_conversion(stored: Mapping[str, Any]) -> bool:
    """Return whether a stored value is a conversion, since a shared store can contain anything."""
    if isinstance(stored.get("problem"), str):
        return True
    parts = stored.get("parts")
    return (
        isinstance(stored.get("metadata"), dict)
        and isinstance(parts, list)
        and all(map(_is_part, parts))
    )


def _is_part(part: object) -> bool:
    match part:
        case [str(), dict()]:
            return True
    return False
