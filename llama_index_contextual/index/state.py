"""The state of an index on disk: where each file lies, who may write, and what is indexed (the manifest).

::

    .contextual/
      manifest.json   what is indexed, with which settings; replaced as a whole, written last; a memory of work done
      building.json   the manifest of an index that is being made to replace this one
      generation      a number that grows with every write: readers compare it, and open the store again when it grew
      chroma/         the nodes, their texts and vectors: the truth, unless a server keeps them
      cache.sqlite3   vectors by the hash of their text, and contexts that were paid for; a cache
      bm25/           the keyword index, derived from the nodes; a cache
      write.lock      held by the process that writes, for as long as it does (write.lock.owner says who it is)
      chroma.lock     held while Chroma's files change, and while a reader opens them
      .gitignore      keeps the folder out of version control

The generation is a file of its own because it changes with every batch, and the manifest of 100,000 documents takes a
second to write. Without the manifest the next refresh reads and parses every file again, and embeds nothing that Chroma
has. A cache can be deleted at any time. Earlier versions had ``vectors.sqlite3`` and ``contexts.sqlite3`` in place of
``cache.sqlite3``: their rows are moved over at the next write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from filelock import FileLock, Timeout
from llama_index.core.utils import iter_batch
from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from llama_index_contextual.errors import LockedError, StorageError
from llama_index_contextual.metadata import CONTEXT_SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DEFAULT_NAME: Final = ".contextual"
DEFAULT_COLLECTION: Final = "contextual"
PAID: Final = "llm:"  # how the source of a context begins that was paid for
# 1: an entry called the hash of its settings "settings", and had no stamp; 2: files that failed were not remembered
STORAGE_VERSION: Final = 3
_STRICT: Final = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one storage folder; the docstring of this module says what each is for."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Return the path of the manifest."""
        return self.root / "manifest.json"

    @property
    def building(self) -> Path:
        """Return the path of the manifest of a successor that is being made."""
        return self.root / "building.json"

    @property
    def generation(self) -> Path:
        """Return the path of the file that changes with every write."""
        return self.root / "generation"

    @property
    def chroma(self) -> Path:
        """Return Chroma's folder."""
        return self.root / "chroma"

    @property
    def cache(self) -> Path:
        """Return the path of the cache of vectors and contexts."""
        return self.root / "cache.sqlite3"

    @property
    def former_caches(self) -> tuple[Path, ...]:
        """Return the paths of the caches of earlier versions."""
        return self.root / "vectors.sqlite3", self.root / "contexts.sqlite3"

    @property
    def bm25(self) -> Path:
        """Return the folder of the saved keyword index."""
        return self.root / "bm25"

    @property
    def chroma_lock(self) -> Path:
        """Return the path of the lock of Chroma's files."""
        return self.root / "chroma.lock"

    @property
    def lock(self) -> Path:
        """Return the path of the write lock."""
        return self.root / "write.lock"

    def create(self) -> None:
        """Make the folder, and keep it out of version control.

        Raises:
            StorageError: The folder cannot be made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("# Made by llama-index-contextual; everything here can be made again.\n*\n", "utf-8")
        except OSError as error:
            raise StorageError(
                f"the index cannot be kept in {self.root} ({error.strerror}). Cure: make it writable, or choose "
                "another folder with storage=."
            ) from error

    def sweep(self, seconds: float) -> None:
        """Delete what killed processes left of :func:`write_atomically`, at least so many seconds ago."""
        for name in ("manifest.json", "building.json", "moving.json", "generation"):
            for left in self.root.glob(f".{name}.????????"):
                with contextlib.suppress(OSError):
                    if time.time() - left.stat().st_mtime >= seconds:
                        left.unlink()


class WriteLock:
    """The write lock of one storage folder; a thread may take it again, other threads and processes wait.

    It is a lock of the operating system, which frees it when its owner dies: nobody ever removes a stale lock file.

    Args:
        path: The lock file. Beside it, ``<name>.owner`` says who holds it.
        timeout: Seconds to wait for another *process*; threads of this process take turns.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path = path
        self._owner = path.with_name(path.name + ".owner")
        self._timeout = timeout
        self._threads = threading.RLock()
        self._file = FileLock(path, thread_local=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            LockedError: Another process has it; the message names that process.
            StorageError: The lock file cannot be written.
        """
        with self._threads:
            self._acquire()
            try:
                yield
            finally:
                self._file.release()

    def _acquire(self) -> None:
        try:
            self._file.acquire(timeout=self._timeout)
        except Timeout:
            raise LockedError(
                f"another process is writing the index at {self._path.parent}: {self._describe_owner()}. Cure: wait "
                "until it ends; or for several writers keep it on a server: --store, as docs/stores.md says."
            ) from None
        except OSError as error:
            raise StorageError(
                f"the index at {self._path.parent} cannot be written ({error.strerror or error}). "
                "Cure: make the folder writable, or choose another with storage=."
            ) from error
        if self._file.lock_counter == 1:
            self._write_owner()

    def _write_owner(self) -> None:
        """Write down who holds the lock; a failure to do so must not stop the writer."""
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv)[:200],
        }
        with contextlib.suppress(OSError):
            self._owner.write_text(json.dumps(owner), encoding="utf-8")

    def _describe_owner(self) -> str:
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}, since {owner['since']} ({owner['command']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown process"


@dataclass(frozen=True, slots=True)
class Entry:
    """One document as it was when it was indexed.

    Attributes:
        sha256: Hash of its bytes (a file) or of its text and metadata (a document given by hand).
        made_with: Hash of the parser and context settings that made its nodes.
        kind: ``"file"`` or ``"document"``; a refresh of a folder deletes only files.
        size: In bytes.
        nodes: How many nodes it has.
        digest: Hash of the ids of its nodes and of their embedded texts, for ``verify``.
        contexts: How many of its nodes have a context from each source.
        stamp: Size and times of the file when it was read; the same stamp means the same content, unread. Empty where
            the file was so new that it could have changed without another time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    sha256: str
    made_with: Annotated[str, Field(validation_alias=AliasChoices("made_with", "settings"))]
    kind: str = "file"
    size: int = 0
    nodes: int = 0
    digest: str = ""
    contexts: dict[str, int] = field(default_factory=dict)
    stamp: str = ""


class Choices(TypedDict, total=False):
    """What was asked for, as :mod:`llama_index_contextual.index.recipe` writes it; an older version knew more names."""

    embed_model: str
    show_context_to_llm: bool
    context: str | dict[str, Any]
    context_options: dict[str, Any]
    llm: str
    chunks: dict[str, Any]
    parser: dict[str, Any]
    files: dict[str, Any]
    readers: dict[str, dict[str, Any]]
    vector_store: str


def _names_its_model(fingerprint: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Refuse settings that do not say whose vectors an index holds: they are damaged."""
    if fingerprint.get("embedding") and "model" not in fingerprint["embedding"]:
        raise ValueError("the embedding has no model")
    return fingerprint


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is known about an index without opening its store.

    Attributes:
        collection: Name of the collection that holds the nodes.
        fingerprint: Settings by section, as ``Fingerprint`` describes them.
        generation: Grows with every commit of the manifest.
        complete: False while a refresh is at work or was killed.
        documents: By document id: the path relative to the folder, or the id that the user set.
        failed: Size and times of each file that could not be indexed, by path: every refresh tries it again, and the
            index is not behind its folder because of it.
        choices: What was asked for, so that it is said once.
        unremembered: Names of settings that could not be written down; who does not give them again cannot write.
        folder: Of the documents.
        version: Of the state on disk.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    collection: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # it becomes part of paths and addresses
    fingerprint: Annotated[dict[str, dict[str, Any]], AfterValidator(_names_its_model)] = field(default_factory=dict)
    generation: int = 0
    complete: bool = True
    documents: dict[str, Entry] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)
    unremembered: list[str] = field(default_factory=list)
    folder: str = ""
    version: Annotated[int, Field(le=STORAGE_VERSION)] = STORAGE_VERSION

    def context_sources(self) -> dict[str, int]:
        """Return how many nodes have a context from each source, all documents together."""
        total: Counter[str] = Counter()
        for entry in self.documents.values():
            total.update(entry.contexts)
        return dict(sorted(total.items()))


_MANIFEST: Final = TypeAdapter(Manifest)
_OF_ENTRY: Final = tuple(one.name for one in fields(Entry))
_DOCUMENTS: Final = b',"documents":{'
_DOCUMENTS_AT_ONCE: Final = 250
_latest: tuple[object, Manifest] | None = None  # what was read or written last, and which file; it is never changed


class ManifestDamagedError(StorageError):
    """The manifest cannot be understood; it can be made again from the store.

    Attributes:
        what: What is wrong, without a cure.
        head: What it still says before its documents, as of a file that was cut off; None where that is unreadable.
    """

    def __init__(self, what: str, head: Manifest | None) -> None:
        super().__init__(f"{what}. Cure: delete it and refresh; nothing is embedded twice.")
        self.what, self.head = what, head


def load_manifest(path: Path) -> Manifest | None:
    """Return the manifest in a file, or None where there is none.

    Raises:
        ManifestDamagedError: The file is damaged.
        StorageError: It cannot be read, or is of a newer version of this package.
    """
    global _latest  # noqa: PLW0603  one for the whole process: that of 100,000 documents takes a third of a second to read
    try:
        file = _identity(path, path.stat())
        if _latest is not None and _latest[0] == file:
            return _latest[1]
        content = path.read_bytes()
        _latest = file, replace(_MANIFEST.validate_json(content), version=STORAGE_VERSION)
        return _latest[1]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}).") from error
    except ValidationError as error:
        _refuse_newer(path, content)
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        what = f"{path} is damaged ({place}{': ' * bool(place)}{fault['msg']})"
        raise ManifestDamagedError(what, _head_of(content)) from error


def _identity(path: Path, found: os.stat_result) -> object:
    return path, found.st_ino, found.st_size, found.st_mtime_ns


def _head_of(content: bytes) -> Manifest | None:
    """Return a manifest without its documents, which are written last and are nearly all of it."""
    head, documents, _ = content.partition(_DOCUMENTS)
    with contextlib.suppress(ValidationError):
        return replace(_MANIFEST.validate_json(head + b"}"), complete=False) if documents else None
    return None


def _refuse_newer(path: Path, content: bytes) -> None:
    """Refuse a manifest that only looks damaged, because a newer version of this package wrote it."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        version = int(json.loads(content)["version"])
        if version > STORAGE_VERSION:
            raise StorageError(
                f"{path} has storage version {version}, this package reads up to {STORAGE_VERSION}. "
                "Cure: upgrade llama-index-contextual."
            )


def nodes_digest(hashes: Mapping[str, str]) -> str:
    """Return the hash of a document's nodes, given as the hash of the embedded text by node id; in any order."""
    lines = "\n".join(f"{id_} {hashes[id_]}" for id_ in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def count_contexts(metadatas: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many nodes have a context from each source; "" counts those without."""
    return dict(Counter(str(metadata.get(CONTEXT_SOURCE, "")) for metadata in metadatas))


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest so that a reader, or a kill at any instant, meets the old one or the new one."""
    global _latest  # noqa: PLW0603
    _latest = _identity(path, write_atomically(path, _written(manifest))), manifest


def _written(manifest: Manifest) -> Iterator[bytes]:
    """Yield the manifest's JSON in parts: that of 100,000 documents would take 200 MB at once, every few seconds."""
    yield b"{"
    comma = b""
    for name in (one.name for one in fields(manifest) if one.name != "documents"):
        yield comma + _json({name: getattr(manifest, name)})[1:-1]
        comma = b","
    yield _DOCUMENTS
    comma = b""
    for part in iter_batch(manifest.documents.items(), _DOCUMENTS_AT_ONCE):
        yield comma + _json({key: {name: getattr(entry, name) for name in _OF_ENTRY} for key, entry in part})[1:-1]
        comma = b","
    yield b"}}"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> os.stat_result:
    """Replace a file's content; return what the new file says of itself.

    Args:
        path: The file.
        data: What it holds afterwards, perhaps in parts.

    Raises:
        StorageError: That failed; the old content is kept.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
            found = os.fstat(file.fileno())
        Path(temporary).replace(path)
    except BaseException as error:  # the parts may fail, too, or be interrupted
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. "
            "Cure: free space or make the folder writable, then refresh."
        ) from error
    return found
