"""What is read: files of a folder, or documents given by hand, as sources with an id and a hash.

A source is read when its turn comes, so that a folder is never in memory as a whole, and what is remembered of it is
the hash of the bytes that were read then, not of what had been seen earlier.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.schema import Document

from llama_index_contextual.app.folder.contents import SourceContent, document_identity, parts_of, sha256_of
from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.files import MOST_BYTES, read_file
from llama_index_contextual.app.folder.formats import ATTACHED, FORMATS, suffix_of
from llama_index_contextual.app.folder.walk import FolderFile, Problem, stamp_of
from llama_index_contextual.chunking import without_comments
from llama_index_contextual.errors import DocumentError, MissingExtraError, SettingError, StorageError
from llama_index_contextual.metadata import PATH
from llama_index_contextual.text import counted, decode, storable
from llama_index_contextual.watching import uncollected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.readers.base import BaseReader

    from llama_index_contextual.app.folder.folders import Folders
    from llama_index_contextual.app.folder.walk import Discovery, FileRules

logger = logging.getLogger(__name__)
_SETTLED: Final = 2_000_000_000  # nanoseconds: the coarsest clock of a file system that is in use, FAT's


class Source(NamedTuple):
    """Where the documents of one file, or of one id, come from.

    Attributes:
        id: Path relative to the folder, or the id that the user set.
        sha256: Of its content now; empty for a file that is new for certain, which is hashed when it is read.
        kind: ``"file"`` or ``"document"``.
        origin: The file, or what was given by hand.
        reading: How the file is read.
        stamp: Size and times of the file now, or "".
    """

    id: str
    sha256: str
    kind: str
    origin: FolderFile | SourceContent
    reading: Any = None  # a Reading
    stamp: str = ""

    def load(self) -> SourceContent:
        """Its documents.

        Raises:
            DocumentError: The file cannot be read.
        """
        return self.origin if isinstance(self.origin, SourceContent) else _load(self.origin, self.reading)

    @property
    def size(self) -> int:
        """The bytes of a file; 1 of a document that is none."""
        return max(int(self.stamp.split()[0]), 1) if self.stamp else 1


@dataclass(frozen=True, slots=True)
class Reading:
    """How a folder is read.

    Attributes:
        folders: The documents.
        rules: Which files count.
        readers: LlamaIndex readers by suffix; their files count, too.
        converter: Reads formats that are no text and that have no reader.
        exclude: A folder that is never entered.
    """

    folders: Folders
    rules: FileRules
    readers: Mapping[str, BaseReader]
    converter: DocumentReader
    exclude: Path

    def find(self, below: str = "", until: float = math.inf, known: Iterable[str] = ()) -> Discovery:
        """Walk the folder, or a part of it.

        Args:
            below: As :func:`find_files` takes it.
            until: The same.
            known: Paths of what is indexed. Formats that were converted, perhaps on another machine, are not taken for
                deleted where the converter is not installed.
        """
        suffixes = {*self.readers, *(FORMATS.keys() & {suffix_of(path) for path in known})}
        more = [pattern for suffix in sorted(suffixes) if (pattern := f"*{suffix}") not in self.rules.include]
        rules = self.rules.changed(include=(*self.rules.include, *more)) if more else self.rules
        return self.folders.find(rules, below=below, exclude=self.exclude, until=until)

    def reader_of(self, path: str) -> BaseReader | None:
        """The reader of a file; None for text."""
        reader = self.readers.get(suffix_of(path))
        return self.converter if reader is None and self.converter.mark(path) else reader

    def read(self, file: FolderFile) -> bytes:
        """The bytes of a file of the folder.

        Raises:
            DocumentError: It is no regular file, too large, or lies elsewhere by a link that must not be followed.
        """
        root = None
        if not self.rules.follow_symlinks:
            with contextlib.suppress(SettingError):
                root = self.folders.home(file.path)[0]
        return read_file(file.place, max(self.rules.max_bytes, MOST_BYTES), root=root)

    def load(self, path: str) -> list[Document]:
        """The documents of one file of the folder, as it is now.

        Raises:
            DocumentError: It cannot be read.
        """
        in_vault = self.folders.vault_of(path) is not None
        return _load(FolderFile(path, str(self.folders.place(path)), "", in_vault), self).documents

    def load_file(self, file: Path) -> tuple[str, list[Document]]:
        """The path and the documents of a file that is named by its place on this machine.

        Raises:
            DocumentError: It is in none of the folders, or cannot be read.
        """
        path = self.folders.path_of(file)
        if path is None:
            raise DocumentError(f"{file} is not in {self.folders}. Cure: a file of that folder, or another folder.")
        try:
            return path, self.load(path)
        except DocumentError as error:
            raise DocumentError(f"{file}: {error}") from error


def gather(
    source: str | Path | Iterable[Document] | None,
    reading: Reading,
    known: Mapping[str, Any],
    failed: list[Problem],
) -> tuple[list[Source], str | None]:
    """The sources to index, and the part of the folder that they cover (None: no part of it).

    Args:
        source: As :meth:`ContextualIndex.refresh` takes it.
        reading: How the folder is read.
        known: What is indexed, as rows of the database: a file whose size and times are the same is not read.
        failed: Gets what cannot be read.

    Raises:
        SettingError: The source is outside of the folder, or does not exist.
    """
    if source is not None and not isinstance(source, str | Path):
        return document_sources(source, reading.folders, failed), None
    below = reading.folders.part_of(source)
    discovery = reading.find(below, known=[key for key, row in known.items() if row.kind == "file"])
    failed.extend(discovery.problems)
    return file_sources(discovery.files, reading, known), below


def readable_documents(reading: Reading) -> list[Document]:
    """The documents of all files of the folder; one that cannot be read is left out, and named in the log."""
    failed: list[Problem] = []
    sources, _ = gather(None, reading, {}, failed)
    return [document for _, documents in read_all(sources, failed) for document in documents]


def read_all(sources: Iterable[Source], failed: list[Problem]) -> list[tuple[Source, list[Document]]]:
    """Sources with their documents; one that cannot be read joins ``failed``, and all of those go to the log."""
    pairs = []
    for source in sources:
        try:
            pairs.append((source, source.load().documents))
        except DocumentError as error:  # noqa: PERF203  the next one may be read
            failed.append(Problem(source.id, str(error)))
    for problem in failed:
        logger.warning("Left out: %s", problem)
    return pairs


def check_source(source: object, folders: Folders) -> str | Path | Sequence[Document] | None:
    """Refuse what cannot be indexed before anything is opened or made; return the source, an iterator as a list.

    Raises:
        SettingError: The source is outside of the folder, does not exist, or holds other things than documents.
        StorageError: The folder is missing.
    """
    if folders.missing_folders_message:  # the index must not be emptied
        raise StorageError(f"{folders.missing_folders_message}. Cure: put it back, then refresh.")
    if source is None or isinstance(source, str | Path):
        folders.part_of(source)
        return source
    if isinstance(source, Document) or not isinstance(source, Iterable):
        raise SettingError(f"source={type(source).__name__} is no path and no list. Cure: refresh([document]).")
    documents = list(source)
    wrong = next((item for item in documents if not isinstance(item, Document)), None)
    if wrong is not None:
        raise SettingError(f"source holds a {type(wrong).__name__}. Cure: give LlamaIndex Documents, or a path.")
    return documents


@uncollected()
def file_sources(
    files: Sequence[FolderFile],
    reading: Reading,
    known: Mapping[str, Any],
) -> list[Source]:
    """A source for each file.

    A file is read here only where its hash tells something: where its size or times differ from what is remembered, or
    where it is new and another one is missing, which may be the same under another name.
    """
    names = {file.path for file in files}
    moved = any(entry.kind == "file" and key not in names for key, entry in known.items())
    sources = []
    for file in files:
        entry = known.get(file.path)
        sha256 = ""
        if entry is not None and entry.stamp == file.stamp:
            sha256 = entry.sha256
        elif entry is not None or moved:
            with contextlib.suppress(DocumentError):  # loading it reports the reason
                sha256 = sha256_of(reading.read(file))
        sources.append(Source(file.path, sha256, "file", file, reading, file.stamp))
    return sources


def _load(file: FolderFile, reading: Reading) -> SourceContent:
    """Read one file, when its turn comes."""
    reader, stamp = reading.reader_of(file.path), _stamp(file)
    data = reading.read(file)
    sha256, size = sha256_of(data), len(data)
    if reader is not None:
        documents, repair = _with_reader(file, reader, data)
        same = stamp == _stamp(file)
        return SourceContent(documents, sha256 if same else "", size, stamp_if_stable(stamp) if same else "", repair)
    content = decode(data)
    text, comments = without_comments(content.text) if file.in_vault else (content.text, 0)
    repair = f"{counted(comments, 'comment')} (%%) left out" if comments else ""
    document = Document(id_=file.path, text=text, metadata={PATH: file.path})
    return SourceContent(
        [document], sha256, size, stamp_if_stable(stamp), "; ".join(filter(None, (content.repair, repair)))
    )


def _stamp(file: FolderFile) -> str:
    try:
        return stamp_of(file.absolute.stat())
    except OSError:
        return ""


def _with_reader(file: FolderFile, reader: BaseReader, data: bytes) -> tuple[list[Document], str]:
    try:
        if isinstance(reader, DocumentReader):
            documents, repair = parts_of(file.path, reader.documents(file.absolute, data))
            attached = [f"not read: {mail.metadata[ATTACHED]}" for mail in documents if ATTACHED in mail.metadata]
            return documents, "; ".join(filter(None, (repair, *attached)))
        loaded = reader.load_data(file.absolute)  # file readers take the path
    except DocumentError:
        raise
    except MissingExtraError as error:
        raise DocumentError(str(error)) from error
    except Exception as error:  # a reader is foreign code: whatever it raises concerns this file alone
        raise DocumentError(f"{type(reader).__name__} failed ({type(error).__name__}: {error}).") from error
    return parts_of(file.path, loaded)


def stamp_if_stable(stamp: str) -> str:
    """A stamp that can be relied upon: "" where the file changed so lately that it may again, unnoticed."""
    latest = max(map(int, stamp.split()[1:]), default=time.time_ns())
    return stamp if latest < time.time_ns() - _SETTLED else ""


def document_sources(documents: Iterable[Document], folders: Folders, failed: list[Problem]) -> list[Source]:
    """A source for each identity among documents given by hand; those without one are added to ``failed``."""
    groups: dict[str, list[Document]] = {}
    for number, document in enumerate(documents):
        identity = document_identity(document, folders)
        if identity is None:
            reason = "it has no identity that lasts. Cure: set id_= (a random UUID is none), or metadata['path']."
            failed.append(Problem(f"document {number}", reason))
        elif storable(identity)[1]:
            reason = f"its id {identity!r} holds characters that no database keeps. Cure: another id_=."
            failed.append(Problem(f"document {number}", reason))
        else:
            groups.setdefault(identity, []).append(document)
    sources = []
    for identity, group in groups.items():
        try:
            sources.append(_document_source(identity, group))
        except (TypeError, ValueError, RecursionError) as error:  # noqa: PERF203  the next one may be indexed
            reason = f"its metadata is no plain data ({type(error).__name__}: {error})"[:300]
            failed.append(Problem(identity, f"{reason}. Cure: strings, numbers, dates and lists of them."))
    return sources


def _document_source(identity: str, group: list[Document]) -> Source:
    documents, repair = parts_of(identity, group)
    content = json.dumps([[d.doc_id, d.text, d.metadata] for d in documents], sort_keys=True, default=str)
    data = content.encode("utf-8", "backslashreplace")
    loaded = SourceContent(documents, sha256_of(data), len(data), repair=repair)
    return Source(identity, loaded.sha256, "document", loaded)
