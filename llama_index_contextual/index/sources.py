"""From files and from LlamaIndex documents to one shape: a source with an id, a hash, and its documents."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import Document

from llama_index_contextual.errors import DocumentError
from llama_index_contextual.metadata import PATH
from llama_index_contextual.storage.files import Problem
from llama_index_contextual.storage.reading import decode, read_bytes, replace_surrogates, sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index.core.readers.base import BaseReader

    from llama_index_contextual.storage.files import FoundFile


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of the manifest to be: where its documents come from.

    Attributes:
        id: Path relative to the folder, or the id that the user set.
        sha256: Of its content.
        size: In bytes.
        kind: ``"file"`` or ``"document"``.
        load: Gives its documents and what was repaired in them; may raise :class:`DocumentError`.
    """

    id: str
    sha256: str
    size: int
    kind: str
    load: Callable[[], tuple[list[Document], str]]


def file_sources(files: Iterable[FoundFile], readers: Mapping[str, BaseReader], failed: list[Problem]) -> list[Source]:
    """Hash files; those that cannot be read are added to ``failed``."""
    sources = []
    for file in files:
        try:
            data = read_bytes(file.absolute)
        except DocumentError as error:
            failed.append(Problem(file.path, str(error)))
            continue
        reader = readers.get(Path(file.path).suffix.lower())
        sources.append(Source(file.path, sha256_of(data), len(data), "file", _Loader(file, reader)))
    return sources


@dataclass(frozen=True, slots=True)
class _Loader:
    """Reads one file when its turn comes, so that a folder is never in memory as a whole."""

    file: FoundFile
    reader: BaseReader | None

    def __call__(self) -> tuple[list[Document], str]:
        if self.reader is not None:
            return self._with_reader(self.reader), ""
        content = decode(read_bytes(self.file.absolute))
        document = Document(id_=self.file.path, text=content.text, metadata={PATH: self.file.path})
        return [document], content.repair

    def _with_reader(self, reader: BaseReader) -> list[Document]:
        try:
            loaded = reader.load_data(self.file.absolute)  # file readers take the path
        except Exception as error:  # a reader is foreign code: whatever it raises concerns this file alone
            raise DocumentError(f"{type(reader).__name__} failed ({type(error).__name__}: {error}).") from error
        return _parts(self.file.path, loaded)


def document_sources(documents: Iterable[Document], root: Path, failed: list[Problem]) -> list[Source]:
    """Group documents given by hand by identity; those without one are added to ``failed``."""
    groups: dict[str, list[Document]] = {}
    for number, document in enumerate(documents):
        identity = document_identity(document, root)
        if identity is None:
            reason = "it has no identity that lasts. Cure: set id_=, or metadata['path']."
            failed.append(Problem(f"document {number}", reason))
        else:
            groups.setdefault(identity, []).append(document)
    return [_document_source(identity, group) for identity, group in groups.items()]


def document_identity(document: Document, root: Path) -> str | None:
    """The id that the user set, else the path; LlamaIndex's random ids say nothing about a document.

    A ``file_path`` inside the folder becomes relative to it, so that it is the same on every machine.
    """
    if not _is_random(document.doc_id):
        return document.doc_id
    for key in (PATH, "file_path"):
        value = document.metadata.get(key)
        if value:
            path = Path(str(value))
            inside = path.is_absolute() and path.is_relative_to(root)
            return (path.relative_to(root) if inside else path).as_posix()
    return None


def _is_random(identity: str) -> bool:
    try:
        return uuid.UUID(identity).version == 4  # noqa: PLR2004  the version of random ids
    except ValueError:
        return False


def _document_source(identity: str, group: list[Document]) -> Source:
    documents = _parts(identity, group)
    content = json.dumps([[d.doc_id, d.text, d.metadata] for d in documents], sort_keys=True, default=str)
    data = content.encode("utf-8", "backslashreplace")
    return Source(identity, sha256_of(data), len(data), "document", lambda: (documents, ""))


def _parts(identity: str, loaded: Iterable[Document]) -> list[Document]:
    """Documents of one source under ids that last: its own, and ``#page`` for the pages of a PDF and the like."""
    documents = list(loaded)
    result = []
    for number, document in enumerate(documents, start=1):
        page = document.metadata.get("page_label") or number
        doc_id = identity if len(documents) == 1 else f"{identity}#{page}"
        text, _ = replace_surrogates(document.text)
        metadata = {replace_surrogates(str(key))[0]: flat_value(value) for key, value in document.metadata.items()}
        copy = Document(
            id_=doc_id,
            text=text,
            metadata={PATH: identity, **{k: v for k, v in metadata.items() if v is not None}},
            excluded_embed_metadata_keys=list(document.excluded_embed_metadata_keys),
            excluded_llm_metadata_keys=list(document.excluded_llm_metadata_keys),
        )
        result.append(copy)
    return result


def flat_value(value: Any) -> str | int | float | bool | None:
    """A metadata value as vector stores take it: lists of plain values joined by commas, other structures as JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return replace_surrogates(value)[0]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple | set) and all(isinstance(item, str | int | float | bool) for item in value):
        return ", ".join(str(item) for item in (sorted(value, key=str) if isinstance(value, set) else value))
    return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)
