"""The keyword index on disk: segments that are written once, and a manifest that is replaced as a whole.

::

    manifest.json        format, settings, stamp, segments with their live rows; replacing it is the commit
    KEY.npz              a segment's postings, lengths, ids, terms, columns
    KEY.records          its nodes, one after the other; mapped into memory
    write.lock           held by the process that persists

The manifest holds every file's checksum.

A process killed at any moment leaves the previous manifest and segments that nothing refers to, which the next
``save`` removes. Persisting after an edit writes the new segment and the manifest, not the index.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import mmap
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from filelock import FileLock

from llama_index_contextual.errors import StorageError
from llama_index_contextual.retrievers.columns import Column, Columns
from llama_index_contextual.retrievers.lexical_index import Terms
from llama_index_contextual.retrievers.records import Records
from llama_index_contextual.retrievers.segments import Postings, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llama_index_contextual.retrievers.lexical_index import Snapshot

logger = logging.getLogger(__name__)

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
LOCK: Final = "write.lock"
_BLOCK: Final = 1 << 20


def save(folder: Path, snapshot: Snapshot, settings: dict[str, Any]) -> None:
    """Write what is new of a snapshot, then the manifest, then remove what nothing refers to.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK):  # what one process writes and nothing refers to yet, another would remove
            _save(folder, snapshot, settings)
    except OSError as error:
        raise StorageError(
            f"The keyword index in {folder} cannot be written ({error.strerror or error}). What was there before is "
            "unharmed. Cure: free space, make the folder writable, or choose another."
        ) from error


def _save(folder: Path, snapshot: Snapshot, settings: dict[str, Any]) -> None:
    known = _known_segments(folder)
    words = list(snapshot.terms)
    entries = []
    for segment in snapshot.segments:
        entry = known.get(segment.key) or _write_segment(folder, segment, words)
        entries.append({**entry, "live": _pack(segment.live) if segment.has_dead else None})
    manifest = {"format": FORMAT, "settings": settings, "segments": entries}
    _write(folder / MANIFEST, json.dumps(manifest).encode())
    _sweep(folder, {segment.key for segment in snapshot.segments})


def load(folder: Path) -> tuple[dict[str, Any], list[Segment], Terms]:
    """Settings, segments and vocabulary, as :func:`save` wrote them.

    Raises:
        StorageError: There is no index in the folder, it is damaged, or another version wrote it.
    """
    cure = "Cure: build it again from the vector store, which holds all it needs"
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise StorageError(f"{folder} has format {manifest['format']}, this version reads {FORMAT}. {cure}")
        terms = Terms()
        segments = [_read_segment(folder, entry, terms) for entry in manifest["segments"]]
        return manifest["settings"], segments, terms
    except FileNotFoundError as error:
        raise StorageError(f"{folder} holds no complete keyword index: {error}. {cure}") from error
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(f"{folder} holds a damaged keyword index: {error!r}. {cure}") from error


def _known_segments(folder: Path) -> dict[str, dict[str, Any]]:
    """Segments that the present manifest describes; none where it cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        return {entry["key"]: entry for entry in manifest["segments"]} if manifest["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_segment(folder: Path, segment: Segment, words: Sequence[str]) -> dict[str, Any]:
    postings, columns = segment.postings, segment.columns.by_key
    texts = {
        "ids": list(segment.ids),
        "terms": [words[number] for number in postings.terms.tolist()],
        "columns": [[key, list(column.values)] for key, column in columns.items()],
    }
    arrays: dict[str, Any] = {
        "starts": postings.starts,
        "stops": postings.stops,
        "rows": postings.rows,
        "counts": postings.counts,
        "lengths": segment.lengths,
        "record_starts": segment.records.starts,
        "codes": np.array([column.codes for column in columns.values()], dtype=np.int32),
        "texts": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8),
    }
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    files = {f"{segment.key}.npz": packed.getvalue(), f"{segment.key}.records": segment.records.blob[:]}
    for name, content in files.items():
        _write(folder / name, content)
    return {"key": segment.key, "checksums": {name: zlib.crc32(content) for name, content in files.items()}}


def _read_segment(folder: Path, entry: dict[str, Any], vocabulary: Terms) -> Segment:
    key = entry["key"]
    for name, checksum in entry["checksums"].items():
        _check(folder / name, checksum)
    with np.load(folder / f"{key}.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    texts = json.loads(arrays["texts"].tobytes())
    numbers = np.fromiter(map(vocabulary.number, texts["terms"]), dtype=np.int32, count=len(texts["terms"]))
    local = Postings(numbers, arrays["starts"], arrays["stops"], arrays["rows"], arrays["counts"])
    columns = {
        name: Column(codes, tuple(values))
        for (name, values), codes in zip(texts["columns"], arrays["codes"], strict=True)
    }
    size = len(texts["ids"])
    return Segment(
        ids=tuple(texts["ids"]),
        postings=local.renumbered(numbers),
        lengths=arrays["lengths"],
        records=Records(_map(folder / f"{key}.records"), arrays["record_starts"]),
        columns=Columns(columns, size),
        live=np.ones(size, dtype=np.bool_) if entry["live"] is None else _unpack(entry["live"], size),
        key=key,
    )


def _check(path: Path, expected: int) -> None:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    if checksum != expected:
        raise ValueError(f"{path.name} has a wrong checksum")


def _map(path: Path) -> bytes | mmap.mmap:
    """A file's bytes, without reading them into this process's own memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _pack(live: Any) -> str:
    return base64.b64encode(np.packbits(live).tobytes()).decode()


def _unpack(packed: str, size: int) -> Any:
    bits = np.frombuffer(base64.b64decode(packed), dtype=np.uint8)
    return np.unpackbits(bits, count=size).astype(np.bool_)


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: readers see the old or the new one, after a power cut too."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        _sync(file)
    temporary.replace(path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sweep(folder: Path, keys: set[str]) -> None:
    """Remove files of segments that are gone. One that another process has mapped may stay until the next time."""
    for path in [*folder.glob("*.npz"), *folder.glob("*.records"), *folder.glob("*.tmp")]:
        if path.name.split(".", 1)[0] not in keys or path.suffix == ".tmp":
            try:
                path.unlink(missing_ok=True)
            except PermissionError:
                logger.debug("%s is in use and stays for now", path)
