"""The documents of a source: one copy of each, with ids that last and metadata that any store takes."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import Document, MediaResource

from llama_index_contextual.metadata import PATH, bounded, path_of
from llama_index_contextual.text import storable

if TYPE_CHECKING:
    from llama_index_contextual.app.folder.folders import Folders

# LlamaIndex gives each document that it loads such an id, another one each time.
_RANDOM_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class SourceContent:
    """The documents of a source, and what they were read from.

    Attributes:
        documents: The documents.
        sha256: Hash of the bytes that were read; empty where they changed while a reader read them.
        size: In bytes.
        stamp: Of the file, as :class:`DocumentRow` keeps it.
        repair: What had to be repaired, or "".
    """

    documents: list[Document]
    sha256: str
    size: int
    stamp: str = ""
    repair: str = ""


def document_identity(document: Document, folders: Folders) -> str | None:
    """Path of the file of the folder that a reader made it of; else the id that the user set, else a path.

    So a document of LlamaIndex's reader and the file that it was read from are one document, and an absolute path is
    the same on every machine. A random UUID, as LlamaIndex makes it, would be another id on each run.
    """
    path = Path(path_of(document.metadata))
    inside = folders.path_of(path) if path.is_absolute() else None
    if inside is not None and path.is_file():
        return inside
    if not _RANDOM_ID.fullmatch(document.doc_id):
        return document.doc_id
    return (inside or path.as_posix()) if path.name else None


def parts_of(identity: str, loaded: Iterable[Document]) -> tuple[list[Document], str]:
    """The documents of one source, and what had to be repaired.

    Their ids last: the identity, and ``#page`` for the pages of a PDF.
    """
    documents = list(loaded)
    labels = [str(document.metadata.get("page_label") or number) for number, document in enumerate(documents, start=1)]
    seen: Counter[str] = Counter()
    repaired, result, repairs = 0, [], list[str]()
    for label, document in zip(labels, documents, strict=True):
        seen[label] += 1
        page = label if seen[label] == 1 else f"{label}#{seen[label]}"  # two pages may be called "iv"
        doc_id = identity if len(documents) == 1 else f"{identity}#{page}"
        text, count = storable(document.text)
        repaired += count
        values, notes = bounded(document.metadata)
        repairs += [f"metadata {note}" for note in notes]
        metadata = {storable(str(key))[0]: flat_value(value) for key, value in values.items()}
        mimetype = document.text_resource.mimetype if document.text_resource is not None else None
        copy = Document(
            id_=storable(doc_id)[0],
            text_resource=MediaResource(text=text, mimetype=mimetype),
            metadata={PATH: identity, **{k: v for k, v in metadata.items() if v is not None}},
            excluded_embed_metadata_keys=list(document.excluded_embed_metadata_keys),
            excluded_llm_metadata_keys=list(document.excluded_llm_metadata_keys),
        )
        result.append(copy)
    if repaired:
        repairs.append(f"{repaired} NUL character(s) or lone surrogate(s) replaced by U+FFFD")
    return result, "; ".join(dict.fromkeys(repairs))


def flat_value(value: Any) -> str | int | float | bool | None:
    """A metadata value as vector stores take it: lists of plain values joined by commas, other structures as JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return storable(value)[0]
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple | set) and all(isinstance(item, str | int | float | bool) for item in value):
        return ", ".join(str(item) for item in (sorted(value, key=str) if isinstance(value, set) else value))
    return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)


def sha256_of(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
