"""``DocumentReader``: PDF, Office, HTML, mail, notebooks and more as LlamaIndex documents, one for each page."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import Document, MediaResource

from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.files import read_file
from llama_index_contextual.app.folder.sandbox import ConversionProcess, ConverterCrashedError, Limits
from llama_index_contextual.errors import DocumentError, MissingExtraError, amount, whole
from llama_index_contextual.metadata import PAGE_LABEL, TITLE
from llama_index_contextual.text import MARKDOWN_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.storage.kvstore.types import BaseKVStore

COLLECTION: Final = "conversions"  # in the key-value store
_PROCESS: Final = ConversionProcess()  # of this process
_SHOWN: Final = frozenset({TITLE, "subject"})  # to an embedding; the rest does not describe the subject of a text


class DocumentReader(BaseReader):
    """Read PDF, Word, PowerPoint, Excel, OpenDocument, HTML, EPUB, mail, notebooks, RTF, LaTeX, Org, reST and CSV.

    Each page, slide or sheet is a document of Markdown with its tables. ``HeadingAwareMarkdownNodeParser`` carries
    headings from page to page. Nothing of a document is run or fetched: it is converted in a process of its own, with
    limits of time, memory and size.

    Args:
        seconds: The most time that a file may take.
        megabytes: The most memory.
        conversions: A LlamaIndex key-value store. What is in it is not converted again, and needs no converter.
        keep: Whether new conversions are written to it.

    Raises:
        SettingError: A limit is not positive.

    Examples:
        >>> from llama_index.core import SimpleDirectoryReader
        >>> reader = DocumentReader()
        >>> loader = SimpleDirectoryReader(input_files=["examples/documents/mail.eml"], file_extractor={".eml": reader})
        >>> [page.metadata["subject"] for page in loader.load_data()]
        ['Dredging of the harbour']
    """

    def __init__(
        self,
        *,
        seconds: float = Limits().seconds,
        megabytes: int = Limits().megabytes,
        conversions: BaseKVStore | None = None,
        keep: bool = True,
    ) -> None:
        self._limits = Limits(amount("seconds", seconds), whole("megabytes", megabytes))
        self.conversions = conversions
        self.keep = keep

    def keeping(self) -> DocumentReader:
        """The same reader, which keeps what it converts."""
        reader = copy.copy(self)
        reader.keep = True
        return reader

    def load_data(self, file: Path | str, extra_info: dict[str, Any] | None = None, fs: Any = None) -> list[Document]:
        """The parts of a file: pages of a PDF or of Word, slides, sheets, cells of a notebook, chapters.

        Args:
            file: It must be on this machine.
            extra_info: More metadata of all parts.
            fs: Must be None or local.

        Returns:
            Documents with ``page`` and ``page_label``, or ``slide``, ``sheet``, ``cell``; and with ``title``,
            ``author``, ``created``, ``modified`` of the document, ``subject``, ``sender``, ``to``, ``date`` of mail.
            The first has ``left_out`` where the text lacks something of the file: ``"3 pictures; 1 script"``.

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
        return self.documents(path, data, extra_info)

    def documents(self, path: Path, data: bytes, extra_info: Mapping[str, Any] | None = None) -> list[Document]:
        """The parts of a file whose bytes were read already; see :meth:`load_data`."""
        converted = self.converted(path, data)
        shared = {**converted.metadata, **(extra_info or {})}
        left_out = shared.pop(formats.LEFT_OUT, "")
        documents: list[Document] = []
        for part in converted.parts:
            values = {**shared, **part.place, **({PAGE_LABEL: part.label} if part.label else {})}
            if left_out and not documents:
                values[formats.LEFT_OUT] = left_out
            hidden = [key for key in values if key not in _SHOWN and key not in (extra_info or ())]
            documents.append(
                Document(
                    text_resource=MediaResource(text=part.text, mimetype=MARKDOWN_TYPE),
                    metadata=values,
                    excluded_embed_metadata_keys=hidden,
                    excluded_llm_metadata_keys=[formats.LEFT_OUT, *([PAGE_LABEL] if part.place else [])],
                )
            )
        return documents

    def converted(self, path: Path, data: bytes) -> formats.Conversion:
        """A file's text and metadata: as they were kept, or converted now.

        Raises:
            DocumentError: It cannot be converted.
            MissingExtraError: The converter is not installed.
        """
        suffix = formats.suffix_of(path.name)
        converter = formats.FORMATS.get(suffix)
        if converter is None:
            names = ", ".join(formats.FORMATS)
            raise DocumentError(f"{suffix or 'no suffix'} is no format that is read. Cure: {names}.")
        key = f"{hashlib.sha256(data).hexdigest()}{suffix} {self.mark(path.name)}"
        cached = self.conversions.get(key, COLLECTION) if self.conversions is not None else None
        if cached is not None and "problem" not in cached:
            return formats.Conversion.of(cached)
        if cached is not None and cached["limits"] == [*self._limits]:
            raise DocumentError(cached["problem"])
        if not formats.is_installed(converter.package):
            raise MissingExtraError(f"what reads {suffix} files ({converter.package})", formats.EXTRA)
        try:
            converted = _PROCESS.convert(path.absolute(), suffix, self._limits)
        except ConverterCrashedError as error:  # it would take as long each time
            self._keep(key, {"problem": str(error), "limits": [*self._limits]})
            raise
        if not any(part.text.strip() for part in converted.parts):
            raise DocumentError("it holds no text. Cure: ignore it.")
        self._keep(key, converted.to_dict())
        return converted

    def _keep(self, key: str, value: dict[str, Any]) -> None:
        if self.conversions is not None and self.keep:
            self.conversions.put(key, value, COLLECTION)

    def mark(self, path: str) -> str:
        """The name and revision of the converter that reads a file; "" where none does."""
        converter = formats.FORMATS.get(formats.suffix_of(path))
        return f"{converter.converter} {converter.revision}" if converter else ""
