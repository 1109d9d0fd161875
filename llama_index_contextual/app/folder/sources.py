"""What is read: files of a folder, or documents passed as objects, as sources with an id and a hash.

A source is read when its turn comes, so that a folder is never in memory as a whole, and what is remembered of it is
the hash of the bytes that were read then, not of what had been seen earlier. Its documents have ids that last and
metadata that any store takes.
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index_contextual.app.folder import (
    MOST_BYTES,
    Folders,
    decode,
    read_file,
    without_comments,
)
from llama_index_contextual.app.folder.formats import FORMATS, suffix_of
from llama_index_contextual.app.folder.walk import (
    Discovery,
    FileRules,
    FolderFile,
    Problem,
    find,
    stamp_of,
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

_SETTLED: Final = (
    2_000_000_000  # nanoseconds: the coarsest clock of a file system that is in use, FAT's
)
# LlamaIndex gives each document that it loads such an id, another one each time.
_RANDOM_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)


class SourceContent(NamedTuple):
    """The documents of a source; the hash and stamp of what they were read from; what was repaired, or "".

    The hash is empty where the file changed while a reader read it.
    """

    documents: list[Document]
    sha256: str
    stamp: str = ""
    repair: str = ""


class Source(NamedTuple):
    """Where the documents of one file, or of one id, come from.

    Attributes:
        id: Path relative to the folder, or the id that the user set.
        sha256: Of its content now; empty for a file that is new for certain, which is hashed when it is read.
        kind: ``"file"`` or ``"document"``.
        load: Its documents. It raises a DocumentError where a file cannot be read.
        stamp: Size and times of the file now, or "".
    """

    id: str
    sha256: str
    kind: str
    load: Callable[[], SourceContent]
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a folder is read.

    Attributes:
        folders: The documents.
        rules: Which files count.
        readers: LlamaIndex readers by suffix; their files count, too.
        converter: Makes what reads formats that are no text and that have no reader.
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
        """Walk the folder, or a part of it.

        Args:
            below: As :func:`~.walk.find` takes it.
            until: The same.
            known: What is indexed, as rows of the database. Formats that were converted, perhaps on another machine,
                are not taken for deleted where the converter is not installed.
        """
        files = (path for path, row in (known or {}).items() if row.kind == "file")
        suffixes = {*self.readers, *FORMATS.keys() & set(map(suffix_of, files))}
        include = tuple(
            dict.fromkeys((*self.rules.include, *(f"*{suffix}" for suffix in sorted(suffixes))))
        )
        rules = self.rules.changed(include=include) if include != self.rules.include else self.rules
        return find(self.folders, rules, below=below, exclude=self.exclude, until=until)

    def read(self, file: FolderFile) -> bytes:
        """The bytes of a file of the folder."""
        return read_file(
            file.place, max(self.rules.max_bytes, MOST_BYTES), root=self.folders.root_of(file.path)
        )

    def content(self, file: FolderFile) -> SourceContent:
        """The documents of one file; a DocumentError where it cannot be read."""
        from llama_index.core.schema import (
            Document,
        )  # slow; who compares a folder needs no document

        from llama_index_contextual.app.folder.convert import DocumentReader

        stamp, data, suffix = _stamp(file), self.read(file), suffix_of(file.path)
        sha256, place, repairs = sha256_of(data), Path(file.place), [""]
        reader: Any = self.readers.get(suffix) or (self.converter() if suffix in FORMATS else None)
        try:
            if reader is None:
                text, repair = decode(data)
                text, comments = without_comments(text) if file.in_vault else (text, 0)
                repairs = [repair, f"{counted(comments, 'comment')} (%%) left out" * bool(comments)]
                loaded = [Document(text=text)]
            elif isinstance(reader, DocumentReader):
                loaded = reader.documents(place, data)
            else:
                loaded = reader.load_data(place)
        except (DocumentError, MissingExtraError) as error:
            raise DocumentError(str(error)) from error
        except (
            Exception
        ) as error:  # a reader is foreign code: whatever it raises concerns this file alone
            raise DocumentError(
                f"{type(reader).__name__} failed ({type(error).__name__}: {error})."
            ) from error
        documents, repair = parts_of(file.path, loaded)
        if reader is not None and stamp != _stamp(file):  # it changed while a reader read it
            sha256, stamp = "", ""
        return SourceContent(
            documents, sha256, stamp_if_stable(stamp), "; ".join(filter(None, [*repairs, repair]))
        )

    def load(self, path: str) -> list[Document]:
        """The documents of one file of the folder, as it is now.

        Raises:
            DocumentError: It cannot be read.
        """
        file = FolderFile(path, str(self.folders.place(path)), "", self.folders.is_in_vault(path))
        return self.content(file).documents

    def load_file(self, file: Path) -> tuple[str, list[Document]]:
        """The path and the documents of a file that is named by its place on this machine.

        Raises:
            DocumentError: It is in none of the folders, or cannot be read.
        """
        path = self.folders.path_of(file)
        if path is None:
            cure = "Cure: a file of that folder, or another folder."
            raise DocumentError(f"{file} is not in {self.folders}. {cure}")
        try:
            return path, self.load(path)
        except DocumentError as error:
            raise DocumentError(f"{file}: {error}") from error


def _stamp(file: FolderFile) -> str:
    try:
        return stamp_of(os.stat(file.place))  # noqa: PTH116
    except OSError:
        return ""


def stamp_if_stable(stamp: str) -> str:
    """A stamp that can be relied upon: "" where the file changed so lately that it may again, unnoticed."""
    latest = max(map(int, stamp.split()[1:]), default=time.time_ns())
    return stamp if latest < time.time_ns() - _SETTLED else ""


def sha256_of(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def gather(
    documents: Iterable[Document] | None,
    reading: Reading,
    known: Mapping[str, Any],
    failed: list[Problem],
) -> list[Source]:
    """The sources to index: documents, or the files of the folder.

    Args:
        documents: As :meth:`ContextualIndex.refresh` takes them.
        reading: How the folder is read.
        known: What is indexed, as rows of the database: a file whose size and times are the same is not read.
        failed: Gets what cannot be read.
    """
    if documents is not None:
        return document_sources(documents, reading.folders, failed)
    discovery = reading.find(known=known)
    failed.extend(discovery.problems)
    return file_sources(discovery.files, reading, known)


def check_documents(documents: object, folders: Folders) -> list[Document] | None:
    """Refuse what cannot be indexed before anything is opened or made; return the documents as a list.

    Raises:
        SettingError: They are no documents.
        StorageError: The folder is missing.
    """
    from llama_index.core.schema import Document

    if folders.missing_folders_message:  # the index must not be emptied
        raise StorageError(f"{folders.missing_folders_message}. Cure: put it back, then refresh.")
    if documents is None:
        return None
    is_list = isinstance(documents, Iterable) and not isinstance(documents, Document | str)
    found: list[Any] = list(documents) if is_list else [documents]  # type: ignore[call-overload]
    wrong = next((item for item in found if not isinstance(item, Document)), None)
    if wrong is not None or not is_list:
        kind = type(documents if wrong is None else wrong).__name__
        cure = "Cure: refresh([document]), or refresh() for the folder."
        raise SettingError(f"{kind} is no list of documents. {cure}")
    return found


def file_sources(
    files: Sequence[FolderFile], reading: Reading, known: Mapping[str, Any], until: float = math.inf
) -> list[Source]:
    """A source for each file.

    A file is read here only where its size or times differ from what is remembered, or where it is new and another one
    is missing, which may be the same under another name; and not after the time ``until``.
    """
    names = {file.path for file in files}
    moved = any(entry.kind == "file" and key not in names for key, entry in known.items())
    sources = []
    for file in files:
        entry = known.get(file.path)
        sha256 = (
            entry.sha256
            if entry is not None and entry.stamp == file.stamp and not entry.failed
            else ""
        )
        if not sha256 and (entry is not None or moved) and time.monotonic() <= until:
            with contextlib.suppress(DocumentError):  # loading it reports the reason
                sha256 = sha256_of(reading.read(file))
        sources.append(
            Source(file.path, sha256, "file", partial(reading.content, file), file.stamp)
        )
    return sources


def document_sources(
    documents: Iterable[Document], folders: Folders, failed: list[Problem]
) -> list[Source]:
    """A source for each identity among documents passed as objects; those without one are added to ``failed``."""
    groups: dict[str, list[Document]] = {}
    for number, document in enumerate(documents):
        if identity := _identity(document, folders):
            groups.setdefault(identity, []).append(document)
        else:
            reason = "it has no identity that lasts: a random UUID, or characters that no database keeps."
            reason += " Cure: set id_=, or metadata['path']."
            failed.append(Problem(f"document {number}", reason))
    sources = []
    for identity, group in groups.items():
        try:
            parts, repair = parts_of(identity, group)
            content = json.dumps(
                [[one.doc_id, one.text, one.metadata] for one in parts], sort_keys=True, default=str
            )
        except Exception as error:  # noqa: BLE001  its values are foreign code: what they raise concerns it alone
            reason = f"its metadata is no plain data ({type(error).__name__}: {error})"[:300]
            failed.append(
                Problem(identity, f"{reason}. Cure: strings, numbers, dates and lists of them.")
            )
            continue
        data = content.encode("utf-8", "backslashreplace")
        load = partial(SourceContent, parts, sha256_of(data), repair=repair)
        sources.append(Source(identity, sha256_of(data), "document", load))
    return sources


def _identity(document: Document, folders: Folders) -> str:
    """Path of the file of the folder that a reader made it of; else the id that the user set, else a path; or "".

    So a document of LlamaIndex's reader and the file that it was read from are one document, and an absolute path is
    the same on every machine. A random UUID, as LlamaIndex makes it, would be another id on each run.
    """
    path = Path(meta.path_of(document.metadata))
    inside = folders.path_of(path) if path.is_absolute() else None
    identity = (inside or path.as_posix()) if path.name else ""
    if not (inside is not None and path.is_file()) and not _RANDOM_ID.fullmatch(document.doc_id):
        identity = document.doc_id
    return "" if storable(identity)[1] else identity


def parts_of(identity: str, loaded: Iterable[Document]) -> tuple[list[Document], str]:
    """The documents of one source, and what had to be repaired.

    Their ids last: the identity, and ``#page`` for the pages of a PDF.
    """
    from llama_index.core.schema import Document, MediaResource

    documents, parts = list(loaded), []
    labels: Counter[str] = Counter()
    repaired, repairs = 0, list[str]()
    for number, document in enumerate(documents, start=1):
        label = str(document.metadata.get("page_label") or number)
        labels[label] += 1
        page = (
            label if labels[label] == 1 else f"{label}#{labels[label]}"
        )  # two pages may be called "iv"
        text, count = storable(document.text)
        repaired += count
        values, notes = meta.bounded(document.metadata)
        repairs += [f"metadata {note}" for note in notes]
        metadata = {storable(str(key))[0]: flat_value(value) for key, value in values.items()}
        mimetype = document.text_resource.mimetype if document.text_resource is not None else None
        part = Document(
            id_=storable(identity if len(documents) == 1 else f"{identity}#{page}")[0],
            text_resource=MediaResource(text=text, mimetype=mimetype),
            metadata={
                meta.PATH: identity,
                **{key: value for key, value in metadata.items() if value is not None},
            },
            excluded_embed_metadata_keys=list(document.excluded_embed_metadata_keys),
            excluded_llm_metadata_keys=list(document.excluded_llm_metadata_keys),
        )
        parts.append(part)
    if repaired:
        repairs.append(f"{repaired} NUL character(s) or lone surrogate(s) replaced by U+FFFD")
    return parts, "; ".join(dict.fromkeys(repairs))


def flat_value(value: Any) -> str | int | float | bool | None:
    """A metadata value as vector stores take it: lists of plain values joined by commas, other structures as JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | date):
        return storable(value)[0] if isinstance(value, str) else value.isoformat()
    if isinstance(value, list | tuple | set) and all(
        isinstance(item, str | int | float | bool) for item in value
    ):
        return ", ".join(
            str(item) for item in (sorted(value, key=str) if isinstance(value, set) else value)
        )
    return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)
