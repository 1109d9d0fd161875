"""The sources of an index: files of its folders, or documents that were passed as objects.

Each source has an id and a hash. It is read only when its turn comes, so that a folder is never in
memory as a whole. The recorded hash is that of the bytes that were read then. The documents of a
source have stable ids and metadata that any store accepts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_contextual.app.folder.files import MAX_BYTES, decode, read_file
from llama_index_contextual.app.folder.formats import (
    is_text,
    known_formats,
    suffix_of,
)
from llama_index_contextual.app.folder.vault import without_comments
from llama_index_contextual.app.folder.walk import (
    Discovery,
    FileRules,
    FolderFile,
    Problem,
    stamp_of,
    walk_folders,
)
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import (
    DocumentError,
    MissingExtraError,
    SettingError,
    StorageError,
)
from llama_index_contextual.utils.text import counted, storable

if TYPE_CHECKING:
    from llama_index.core.readers.base import BaseReader
    from llama_index.core.schema import Document

    from llama_index_contextual.app.folder.convert import DocumentReader
    from llama_index_contextual.app.folder.folders import Folders

# Nanoseconds. The coarsest clock of a file system that is in use is that of FAT.
_SETTLED = 2_000_000_000
# By default, LlamaIndex gives each document that it loads a new id of this form.
_RANDOM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_MAX_REASON = 300  # characters
# The share of a PDF or Office file that is text: 1 % in slides, 32 % in 17 company reports.
_TEXT_SHARE = 0.2


class SourceContent(NamedTuple):
    """The documents of a source, with the hash and stamp of the bytes that they were read from.

    ``repair`` describes repairs and is "" if none were needed. The hash is empty if the file
    changed while a reader read it.
    """

    documents: list[Document]
    sha256: str
    stamp: str = ""
    repair: str = ""


class Source(NamedTuple):
    """The source of the documents of one file, or with one id.

    Attributes:
        id: The path relative to the folder, or the id that the user set.
        sha256: The hash of its current content. It is empty for a file that is known to be new,
            which is hashed when it is read.
        kind: ``"file"`` or ``"document"``.
        load: A function that returns its documents, and raises a DocumentError if a file cannot be
            read.
        bytes: The size of the file or of its content.
        stamp: The current size and times of the file, or "".
    """

    id: str
    sha256: str
    kind: str
    load: Callable[[], SourceContent]
    bytes: int
    stamp: str = ""

    @property
    def size(self) -> int:
        """Return an estimate of the bytes of its text, without reading it."""
        return self.bytes if is_text(self.id) else int(self.bytes * _TEXT_SHARE)


@dataclass(frozen=True, slots=True)
class FolderReader:
    """Finds and reads the files of folders.

    Attributes:
        folders: The folders.
        rules: The rules that select files.
        readers: LlamaIndex readers by suffix. Files with these suffixes are read, too.
        converter: A function that returns the reader for other formats that are not text.
        exclude: A folder that is never entered.
    """

    folders: Folders
    rules: FileRules
    readers: Mapping[str, BaseReader]
    converter: Callable[[], DocumentReader]
    exclude: Path

    def find(
        self, below: str = "", until: float = math.inf, known: Mapping[str, Any] | None = None
    ) -> Discovery:
        """Walk the folders, or a part of them.

        Args:
            below: The part to walk. See :func:`~.walk.walk_folders`.
            until: The time to stop. See :func:`~.walk.walk_folders`.
            known: The indexed documents, as rows of the database. If files were converted,
                perhaps on another machine, they are found even if the converter is not installed.
        """
        indexed = {suffix_of(path) for path, row in (known or {}).items() if row.kind == "file"}
        suffixes = {*self.readers, *(indexed & known_formats().keys())}
        patterns = [f"*{suffix}" for suffix in sorted(suffixes)]
        include = tuple(dict.fromkeys([*self.rules.include, *patterns]))
        rules = self.rules
        if include != rules.include:
            rules = rules.changed(include=include)
        return walk_folders(self.folders, rules, below=below, exclude=self.exclude, until=until)

    def read(self, file: FolderFile) -> bytes:
        """Return the bytes of a file of the folder."""
        max_bytes = max(self.rules.max_bytes, MAX_BYTES)
        return read_file(file.place, max_bytes, root=self.folders.root_of(file.path))

    def content(self, file: FolderFile) -> SourceContent:
        """Return the documents of one file, or raise a DocumentError if it cannot be read."""
        stamp = _stamp(file)
        data = self.read(file)
        sha256 = sha256_of(data)
        suffix = suffix_of(file.path)
        reader: BaseReader | None = self.readers.get(suffix)
        if reader is None and suffix in known_formats():
            reader = self.converter()
        repairs: list[str] = []
        if reader is None:
            loaded = [_text_document(file, data, repairs)]
        else:
            loaded = _load(reader, Path(file.place), data)
            if stamp != _stamp(file):  # the file changed while the reader read it
                sha256 = stamp = ""
        documents, repair = storable_documents(file.path, loaded)
        repair = "; ".join(filter(None, [*repairs, repair]))
        return SourceContent(documents, sha256, stamp_if_stable(stamp), repair)

    def load(self, path: str) -> list[Document]:
        """Return the current documents of one file of the folder.

        Raises:
            DocumentError: It cannot be read.
        """
        place = str(self.folders.place(path))
        file = FolderFile(path, place, "", self.folders.is_in_vault(path))
        return self.content(file).documents

    def load_file(self, file: Path) -> tuple[str, list[Document]]:
        """Return the path and the documents of a file, given its place on this machine.

        Raises:
            DocumentError: The file is in none of the folders, or cannot be read.
        """
        path = self.folders.path_of(file)
        if path is None:
            hint = "Name a file of that folder, or another folder."
            raise DocumentError(f"{file} is not in {self.folders}. {hint}")
        try:
            return path, self.load(path)
        except DocumentError as error:
            raise DocumentError(f"{file}: {error}") from error


def _text_document(file: FolderFile, data: bytes, repairs: list[str]) -> Document:
    """Return a text file as a document, and add any repairs to ``repairs``."""
    from llama_index.core.schema import Document  # slow, and not needed to compare a folder

    text, repair = decode(data)
    repairs.append(repair)
    if file.in_vault:
        text, comments = without_comments(text)
        if comments:
            repairs.append(f"{counted(comments, 'comment')} (%%) left out")
    return Document(text=text)


def _load(reader: BaseReader, place: Path, data: bytes) -> list[Document]:
    """Return the documents that a reader makes from a file."""
    from llama_index_contextual.app.folder.convert import DocumentReader

    try:
        if isinstance(reader, DocumentReader):
            return reader.documents(place, data)
        return reader.load_data(place)
    except DocumentError:
        raise
    except MissingExtraError as error:
        raise DocumentError(str(error)) from error
    except Exception as error:  # readers are foreign code; their errors affect only this file
        reason = f"{type(reader).__name__} failed ({type(error).__name__}: {error})."
        raise DocumentError(reason) from error


def _stamp(file: FolderFile) -> str:
    try:
        return stamp_of(os.stat(file.place))  # noqa: PTH116
    except OSError:
        return ""


def stamp_if_stable(stamp: str) -> str:
    """Return a stamp, or "" if the file changed so recently that a new change could go unseen."""
    now = time.time_ns()
    latest = max(map(int, stamp.split()[1:]), default=now)
    return stamp if latest < now - _SETTLED else ""


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def gather(
    documents: Iterable[Document] | None,
    reader: FolderReader,
    known: Mapping[str, Any],
    problems: list[Problem],
) -> list[Source]:
    """Return the sources to index, which are documents or the files of the folders.

    Args:
        documents: The documents, as for :meth:`ContextualIndex.refresh`.
        reader: The reader of the folders.
        known: The indexed documents, as rows of the database. Files whose size and times are
            unchanged are not read.
        problems: The list to which problems are added.
    """
    if documents is not None:
        return document_sources(documents, reader.folders, problems)
    discovery = reader.find(known=known)
    problems.extend(discovery.problems)
    return file_sources(discovery.files, reader, known)


def check_documents(documents: object, folders: Folders) -> list[Document] | None:
    """Return the documents as a list, and refuse invalid input before anything is opened.

    Raises:
        SettingError: An item is not a document.
        StorageError: The folder is missing.
    """
    from llama_index.core.schema import Document

    if folders.missing_folders_message:  # the index must not be emptied
        raise StorageError(f"{folders.missing_folders_message}. Put it back, then refresh.")
    if documents is None:
        return None
    wrong = documents
    if isinstance(documents, Iterable) and not isinstance(documents, Document | str):
        items = list(documents)
        wrong = next((item for item in items if not isinstance(item, Document)), None)
        if wrong is None:
            return items
    hint = "Call refresh([document]), or refresh() for the folder."
    raise SettingError(f"{type(wrong).__name__} is not a list of documents. {hint}")


def file_sources(
    files: Sequence[FolderFile],
    reader: FolderReader,
    known: Mapping[str, Any],
    until: float = math.inf,
) -> list[Source]:
    """Return a source for each file.

    A file is read here only if its size or times changed, or if it is new while an indexed file is
    missing, because it can be the same file under another name. After the time ``until``, no file
    is read.
    """
    paths = {file.path for file in files}
    has_missing = any(row.kind == "file" and path not in paths for path, row in known.items())
    sources = []
    for file in files:
        row = known.get(file.path)
        sha256 = ""
        if row is not None and row.stamp == file.stamp and not row.failed:
            sha256 = row.sha256
        elif (row is not None or has_missing) and time.monotonic() <= until:
            with contextlib.suppress(DocumentError):  # loading it reports the reason
                sha256 = sha256_of(reader.read(file))
        load = partial(reader.content, file)
        size, _, _ = file.stamp.partition(" ")
        sources.append(Source(file.path, sha256, "file", load, int(size), file.stamp))
    return sources


def document_sources(
    documents: Iterable[Document], folders: Folders, problems: list[Problem]
) -> list[Source]:
    """Return a source for each identity among documents that were passed as objects.

    Documents without an identity are added to ``problems``.
    """
    groups: dict[str, list[Document]] = {}
    for number, document in enumerate(documents):
        identity = _identity(document, folders)
        if identity:
            groups.setdefault(identity, []).append(document)
        else:
            reason = (
                "it has no stable id, but a random UUID or characters that databases reject. "
                "Set id_=, or metadata['path']."
            )
            problems.append(Problem(f"document {number}", reason))
    sources = []
    for identity, group in groups.items():
        try:
            source = _document_source(identity, group)
        except Exception as error:  # noqa: BLE001, PERF203  its values are foreign code; their errors affect only this document
            fault = f"its metadata is not plain data ({type(error).__name__}: {error})"
            reason = f"{fault[:_MAX_REASON]}. Use strings, numbers, dates and lists of them."
            problems.append(Problem(identity, reason))
        else:
            sources.append(source)
    return sources


def _document_source(identity: str, documents: list[Document]) -> Source:
    parts, repair = storable_documents(identity, documents)
    values = [[part.doc_id, part.text, part.metadata] for part in parts]
    content = json.dumps(values, sort_keys=True, default=str)
    sha256 = sha256_of(content.encode("utf-8", "backslashreplace"))
    load = partial(SourceContent, parts, sha256, repair=repair)
    return Source(identity, sha256, "document", load, len(content))


def _identity(document: Document, folders: Folders) -> str:
    """Return the path of a document's file in the folders, or else its id, or else its path, or "".

    So a document from a LlamaIndex reader and its file in the folder are the same document, even
    if the reader's path goes through a symbolic link, and the identity is the same on every
    machine. Random UUIDs from LlamaIndex are not used, because they change with every run.
    """
    path = Path(meta.path_of(document.metadata).removeprefix("file://"))
    inside = folders.path_of(path) if path.is_absolute() else None
    if inside is not None and path.is_file():
        identity = inside
    elif not _RANDOM_ID.fullmatch(document.doc_id):
        identity = document.doc_id
    elif path.name:
        identity = inside or path.as_posix()
    else:
        identity = ""
    _, unstorable = storable(identity)
    return "" if unstorable else identity


def storable_documents(identity: str, loaded: Iterable[Document]) -> tuple[list[Document], str]:
    """Return the documents of one source, and the repairs that were needed.

    Their ids are stable: the identity, followed by ``#page`` for the pages of a PDF.
    """
    documents = list(loaded)
    labels: Counter[str] = Counter()
    repairs: list[str] = []
    replaced = 0
    parts = []
    for number, document in enumerate(documents, start=1):
        label = str(document.metadata.get("page_label") or number)
        labels[label] += 1
        if labels[label] > 1:  # two pages can have the label "iv"
            label += f"#{labels[label]}"
        part_id = identity if len(documents) == 1 else f"{identity}#{label}"
        part, count = _storable_document(part_id, identity, document, repairs)
        parts.append(part)
        replaced += count
    if replaced:
        repairs.append(f"{replaced} NUL character(s) or lone surrogate(s) replaced by U+FFFD")
    return parts, "; ".join(dict.fromkeys(repairs))


def _storable_document(
    part_id: str, identity: str, document: Document, repairs: list[str]
) -> tuple[Document, int]:
    """Return a document that any store accepts, and the number of characters replaced in it."""
    from llama_index.core.schema import Document, MediaResource

    text, replaced = storable(document.text)
    values, notes = meta.bounded(document.metadata)
    repairs += [f"metadata {note}" for note in notes]
    metadata: dict[str, Any] = {meta.PATH: identity}
    for key, value in values.items():
        flat = flat_value(value)
        if flat is not None:
            metadata[storable(str(key))[0]] = flat
    resource = document.text_resource
    mimetype = None if resource is None else resource.mimetype
    part = Document(
        id_=storable(part_id)[0],
        text_resource=MediaResource(text=text, mimetype=mimetype),
        metadata=metadata,
        excluded_embed_metadata_keys=list(document.excluded_embed_metadata_keys),
        excluded_llm_metadata_keys=list(document.excluded_llm_metadata_keys),
    )
    return part, replaced


def flat_value(value: Any) -> str | int | float | bool | None:
    """Return a metadata value that vector stores accept.

    Lists of plain values are joined by commas. Other objects become JSON.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return storable(value)[0]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, set):
        value = sorted(value, key=str)
    is_list = isinstance(value, list | tuple)
    if is_list and all(isinstance(item, str | int | float | bool) for item in value):
        return ", ".join(map(str, value))
    return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)
