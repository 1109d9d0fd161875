"""What a refresh is asked to look at: the folder, a part of it, or documents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import Document

from llama_index_contextual.errors import DocumentError, SettingError, StorageError
from llama_index_contextual.identity import is_random_id
from llama_index_contextual.index.files import Problem, find_files
from llama_index_contextual.metadata import PATH, path_of
from llama_index_contextual.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.readers.base import BaseReader

    from llama_index_contextual.index.files import FoundFile
    from llama_index_contextual.index.settings import IndexSettings


def gather(
    source: str | Path | Iterable[Document] | None, settings: IndexSettings, failed: list[Problem]
) -> tuple[list[Source], str | None]:
    """What to index, and which part of the folder that covers (None: no part of it).

    Args:
        source: As :meth:`ContextualIndex.refresh` takes it.
        settings: Folder, rules and readers.
        failed: Gets what cannot be read.

    Raises:
        SettingError: The source is outside of the folder, or does not exist.
    """
    if source is not None and not isinstance(source, str | Path):
        return document_sources(source, settings.folder, failed), None
    below = part_of(settings.folder, source)
    rules = replace(settings.files, include=(*settings.files.include, *(f"*{suffix}" for suffix in settings.readers)))
    found = find_files(settings.folder, rules, below=below, exclude=settings.layout.root)
    failed.extend(found.problems)
    return file_sources(found.files, settings.readers, failed), below


def check_source(source: object, folder: Path) -> str | Path | Sequence[Document] | None:
    """Refuse what cannot be indexed before anything is opened or made; gives the source, an iterator as a list.

    Raises:
        SettingError: The source is outside of the folder, does not exist, or holds other things than documents.
        StorageError: The folder is gone.
    """
    if not folder.is_dir():  # not mounted, perhaps: its index must not be emptied, nor the folder made again
        raise StorageError(f"the folder {folder} is no longer there. Cure: put it back, then refresh.")
    if source is None or isinstance(source, str | Path):
        part_of(folder, source)
        return source
    if isinstance(source, Document) or not isinstance(source, Iterable):
        raise SettingError(f"source={type(source).__name__} is no path and no list. Cure: refresh([document]).")
    documents = list(source)
    wrong = next((one for one in documents if not isinstance(one, Document)), None)
    if wrong is not None:
        raise SettingError(f"source holds a {type(wrong).__name__}. Cure: give LlamaIndex Documents, or a path.")
    return documents


def part_of(folder: Path, source: str | Path | None) -> str:
    """A folder or file inside the folder, relative to it; "" is all of it."""
    if source is None:
        return ""
    path = Path(source).expanduser()
    path = path.resolve() if path.is_absolute() else (folder / path).resolve()
    if not path.is_relative_to(folder):
        raise SettingError(f"{source} is outside of {folder}. Cure: open an index for that folder.")
    if not path.exists():
        raise SettingError(f"{source} does not exist. Cure: refresh the folder it was in, and it is forgotten.")
    below = path.relative_to(folder).as_posix()
    return "" if below == "." else below


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
    if not is_random_id(document.doc_id):
        return document.doc_id
    path = Path(path_of(document.metadata))
    if not path.name:
        return None
    inside = path.is_absolute() and path.is_relative_to(root)
    return (path.relative_to(root) if inside else path).as_posix()


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


_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BINARY_SHARE: Final = 0.01  # text holds hardly any control characters but white space, escape and form feed
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's text, the SHA-256 of its bytes, and what had to be repaired to read it ("" if nothing)."""

    text: str
    sha256: str
    repair: str = ""


def sha256_of(data: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: Path) -> bytes:
    """A file's bytes; :class:`DocumentError` where the system refuses."""
    try:
        with path.open("rb") as file:
            return file.read()
    except OSError as error:
        raise DocumentError(f"it cannot be read ({error.strerror or error}).") from error


def decode(data: bytes) -> FileText:
    """Text of a file: UTF-8, UTF-16 with its mark, or Windows-1252 where the bytes are no UTF-8.

    Lone surrogates, which the Markdown parser and the store both crash on, become U+FFFD. Line ends stay as they are,
    because a chunk's text is a slice of the document's.
    """
    sha256 = sha256_of(data)
    if data.startswith(_UTF16_MARKS):
        text, repair = data.decode("utf-16", "replace"), ""
    elif b"\x00" in data:
        raise DocumentError("it is binary, not text (it holds NUL bytes). Cure: ignore it, or give its type a reader.")
    else:
        text, repair = _decode_bytes(data)
    if len(_CONTROL.findall(text[:100_000])) > _BINARY_SHARE * min(len(text), 100_000):
        raise DocumentError("it is binary, not text (control characters). Cure: ignore it, or give its type a reader.")
    clean, count = replace_surrogates(text)
    if count:
        repair = f"{count} lone surrogate(s) replaced by U+FFFD"
    return FileText(clean, sha256, repair)


def _decode_bytes(data: bytes) -> tuple[str, str]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8", "surrogatepass"), ""
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x} at {error.start:,} is no UTF-8"
    # Latin-1 bytes in the wild are Windows-1252; the five bytes that it leaves undefined become U+FFFD.
    return data.decode("cp1252", "replace"), f"{what}; read as Windows-1252. Cure: convert it to UTF-8"
