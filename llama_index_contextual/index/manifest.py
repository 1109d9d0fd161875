"""The manifest: what an index holds, with which settings it was made, and which files could not be indexed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from llama_index.core.utils import iter_batch
from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from llama_index_contextual.errors import StorageError
from llama_index_contextual.index.state import write_atomically
from llama_index_contextual.metadata import CONTEXT_SOURCE, value_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PAID: Final = "llm:"  # how the source of a context begins that was paid for
# 1: an entry called the hash of its settings "settings", and had no stamp; 2: files that failed were not remembered
STORAGE_VERSION: Final = 3
_STRICT: Final = ConfigDict(extra="forbid", strict=True)


_counts: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}


def _shared(counts: dict[str, int]) -> dict[str, int]:
    """Return the one object with these counts: 100,000 documents have a few hundred, and each would take 200 bytes."""
    return _counts.setdefault(tuple(counts.items()), counts)


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
        contexts: How many of its nodes have a context from each source; entries share it, and nobody changes it.
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
    contexts: Annotated[dict[str, int], AfterValidator(_shared)] = field(default_factory=dict)
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
        seal: Of the user who made it, over what a stranger may not say: see ``recipe``.
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
    seal: str = ""

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
        latest = _latest  # read once: another thread may load that of another index meanwhile
        if latest is not None and latest[0] == file:
            return latest[1]
        content = path.read_bytes()
        found = replace(_MANIFEST.validate_json(content), version=STORAGE_VERSION)
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
    _latest = file, found
    return found


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
    return _shared(dict(Counter(str(value_of(metadata, CONTEXT_SOURCE) or "") for metadata in metadatas)))


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
