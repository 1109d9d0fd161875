"""Where things lie in a storage folder.

::

    .contextual/
      manifest.json     what is indexed, made from what; replaced atomically, written last
      building.json     the same of an index that is being made to replace it
      generation        a number that grows with every write, so that readers notice
      chroma/           the nodes, their texts and vectors: the truth
      vectors.sqlite3   vectors by hash of their text; a cache
      bm25/             the keyword index, derived; a cache
      write.lock        held by the process that writes, for as long as it does
      chroma.lock       held while Chroma's files change, and while a reader opens them
      .gitignore        keeps the folder out of version control
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from llama_index_contextual.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULT_NAME: Final = ".contextual"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one storage folder."""

    root: Path

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self.root / "manifest.json"

    @property
    def building(self) -> Path:
        """The manifest of an index that is being made to replace this one."""
        return self.root / "building.json"

    @property
    def generation(self) -> Path:
        """The generation stamp."""
        return self.root / "generation"

    @property
    def chroma(self) -> Path:
        """Chroma's folder."""
        return self.root / "chroma"

    @property
    def vectors(self) -> Path:
        """The vector cache."""
        return self.root / "vectors.sqlite3"

    @property
    def contexts(self) -> Path:
        """The cache of contexts that were paid for."""
        return self.root / "contexts.sqlite3"

    @property
    def bm25(self) -> Path:
        """The persisted keyword index."""
        return self.root / "bm25"

    @property
    def bm25_lock(self) -> Path:
        """Held by whoever writes the persisted keyword index."""
        return self.root / "bm25.lock"

    @property
    def chroma_lock(self) -> Path:
        """The lock that keeps a reader from opening Chroma's files while they change."""
        return self.root / "chroma.lock"

    @property
    def lock(self) -> Path:
        """The write lock."""
        return self.root / "write.lock"

    def create(self) -> None:
        """Make the folder, and keep it out of version control."""
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


class WriteLock:
    """The write lock of one storage folder; re-entrant within a thread, exclusive between threads and processes.

    Args:
        path: The lock file. Beside it, ``<name>.owner`` says who holds it.
        timeout: Seconds to wait for another *process*; threads of this process simply take turns.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path = path
        self._owner = path.with_name(path.name + ".owner")
        self._timeout = timeout
        self._threads = threading.RLock()
        self._file = FileLock(path, thread_local=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; :class:`LockedError` names the process that has it."""
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
                "until it ends; or for several writers use Chroma's server (client=chromadb.HttpClient(...))."
            ) from None
        except OSError as error:
            raise StorageError(
                f"the index at {self._path.parent} cannot be written ({error.strerror or error}). "
                "Cure: make the folder writable, or choose another with storage=."
            ) from error
        if self._file.lock_counter == 1:
            self._write_owner()

    def _write_owner(self) -> None:
        """Say who holds the lock; only a courtesy, so a failure to write it must not stop the writer."""
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


STORAGE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One document as it was when it was indexed.

    Attributes:
        sha256: Of its bytes (a file) or its text and metadata (a document given by hand).
        settings: Hash of the parser and context settings that made its nodes.
        kind: ``"file"`` or ``"document"``; a refresh of a folder deletes only files.
        size: In bytes.
        nodes: How many nodes it has.
        digest: Of the sorted ids of its nodes and their embedded texts' hashes, for ``verify``.
        contexts: How many of its nodes have a context from each source.
    """

    sha256: str
    settings: str
    kind: str = "file"
    size: int = 0
    nodes: int = 0
    digest: str = ""
    contexts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is known about an index without opening Chroma.

    Attributes:
        collection: Name of the Chroma collection that holds the nodes.
        fingerprint: Settings by section, as ``Fingerprint`` describes them.
        generation: Grows with every write; readers reopen when it has.
        complete: False while a refresh is at work or was killed.
        documents: By document id: the path relative to the folder, or the id that the user set.
        choices: What was asked for by a string (``embed_model``, ``context``, ``llm``), so that it is said once.
        version: Of this layout.
    """

    collection: str
    fingerprint: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    complete: bool = True
    documents: dict[str, Entry] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    version: int = STORAGE_VERSION

    def context_sources(self) -> dict[str, int]:
        """How many nodes have a context from each source, all documents together."""
        total: Counter[str] = Counter()
        for entry in self.documents.values():
            total.update(entry.contexts)
        return dict(sorted(total.items()))


class ManifestDamagedError(StorageError):
    """The manifest cannot be understood; it can be made again from the store."""


def load_manifest(path: Path) -> Manifest | None:
    """The manifest in a file, or None where there is none.

    Raises:
        ManifestDamagedError: The file is damaged.
        StorageError: It cannot be read, or is of a newer version of this package.
    """
    try:
        raw = json.loads(path.read_bytes())
        version = int(raw["version"])
        if version > STORAGE_VERSION:
            raise StorageError(
                f"{path} has storage version {version}, this package reads up to {STORAGE_VERSION}. "
                "Cure: upgrade llama-index-contextual."
            )
        documents = {key: Entry(**entry) for key, entry in raw.pop("documents").items()}
        return Manifest(documents=documents, **raw)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestDamagedError(
            f"{path} is damaged ({error}). Cure: delete it and refresh; nothing is embedded twice."
        ) from error


def save_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest so that a reader, or a kill at any instant, meets the old one or the new one."""
    write_atomically(path, json.dumps(asdict(manifest), ensure_ascii=False, separators=(",", ":")).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content; :class:`StorageError` where that fails, with the old content kept."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. "
            "Cure: free space or make the folder writable, then refresh."
        ) from error
