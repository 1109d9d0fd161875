"""The manifest: which documents the index holds, made from what, with which settings. Written last, atomically.

It is a memory of work done, not the truth: Chroma holds the nodes. Without it, the next refresh reads and parses every
file again, and embeds nothing that Chroma has.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from llama_index_contextual.errors import StorageError

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
