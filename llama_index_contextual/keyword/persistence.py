"""Keep a keyword index on disk: segments are written once, and a manifest is replaced as a whole.

::

    manifest.json        format, settings, stamp, segments with their live rows; replacing it commits the change
    KEY.npz              a segment's postings, lengths, ids, terms, columns
    KEY.order            the terms of its documents in their order, two bytes each; mapped into memory
    KEY.records          its nodes, one after the other; mapped into memory
    write.lock           held by the process that persists

The manifest holds a checksum of every file and of itself.

A process that is killed at any moment leaves the previous manifest, and perhaps segments that nothing refers to; the
next save removes them. Saving after an edit writes the new segment and the manifest, and nothing else.
"""

from __future__ import annotations

import base64
import json
import logging
import mmap
import os
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from filelock import FileLock

from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.filters import Column, Columns
from llama_index_contextual.keyword.index import KeywordIndex
from llama_index_contextual.keyword.segments import Postings, Records, Segment, WordOrder
from llama_index_contextual.keyword.snapshot import Snapshot, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

FORMAT: Final = 3
MANIFEST: Final = "manifest.json"
LOCK: Final = "write.lock"
_BLOCK: Final = 1 << 20
# What reading a file raises that is cut, changed, or of another version.
_DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)


def save_index(
    index: KeywordIndex, folder: Path, *, stamp: str | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Write what is new of an index, then the manifest, then remove what nothing refers to.

    Args:
        index: What to write.
        folder: Made where it is missing.
        stamp: What the index was made from (a version, a hash); :func:`load_index` can ask for it.
        settings: More JSON values to keep beside the index's own.

    Raises:
        StorageError: The folder cannot be written.
    """
    own = {"k1": index.k1, "b": index.b, "analyzer": index.analyzer.settings}
    kept = {**(settings or {}), **own, "fingerprint": index.analyzer.fingerprint, "stamp": stamp}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # With the lock: another process would remove what this one writes before the manifest refers to it.
        with FileLock(folder / LOCK):
            _save(folder, index.snapshot, kept)
    except OSError as error:
        raise StorageError(
            f"The keyword index in {folder} cannot be written ({error.strerror or error}). What was there before is "
            "unharmed. Cure: free space, make the folder writable, or choose another."
        ) from error


def saved_stamp(folder: Path) -> str | None:
    """Return the stamp of the index that was saved in a folder; None where there is none that can be read."""
    try:
        stamp: str | None = _read_manifest(folder)["settings"]["stamp"]
    except _DAMAGE:
        return None
    return stamp


def _save(folder: Path, snapshot: Snapshot, settings: dict[str, Any]) -> None:
    known = _known_segments(folder)
    words = list(snapshot.terms)
    entries = []
    for segment in snapshot.segments:
        entry = known.get(segment.key) or _write_segment(folder, segment, words)
        entries.append({**entry, "live": _pack(segment.live) if segment.has_dead else None})
    content = {"settings": settings, "segments": entries}
    manifest = {"format": FORMAT, "checksum": _checksum_of(content), "content": content}
    _write(folder / MANIFEST, lambda file: file.write(json.dumps(manifest).encode()))
    _sweep(folder, {segment.key for segment in snapshot.segments})


def load_index(
    folder: Path,
    *,
    stamp: str | None = None,
    analyzer: Analyzer | None = None,
    k1: float | None = None,
    b: float | None = None,
) -> tuple[KeywordIndex, dict[str, Any]]:
    """Read what :func:`save_index` wrote.

    Args:
        folder: Where it was written.
        stamp: Refuse an index that was saved with another stamp.
        analyzer: Refuse an index whose terms another analyzer made.
        k1: Replaces the saved one.
        b: Replaces the saved one.

    Returns:
        The index, and the settings that were given to be kept beside it.

    Raises:
        StorageError: The folder holds no index, it is damaged, or another version wrote it.
        FingerprintError: It was made from something else, or with another analyzer or version of it.
    """
    settings, segments, terms = _load(folder)
    made_by, made_from = settings.pop("fingerprint"), settings.pop("stamp")
    own = Analyzer.from_settings(settings.pop("analyzer"))
    if made_by != (analyzer or own).fingerprint:
        raise FingerprintError(f"{folder} holds terms of another analyzer or version. Cure: build it again.")
    if stamp is not None and stamp != made_from:
        raise FingerprintError(f"{folder} is stale: made from {made_from!r}, wanted {stamp!r}. Cure: build it again.")
    saved_k1, saved_b = settings.pop("k1"), settings.pop("b")
    index = KeywordIndex(analyzer or own, k1=saved_k1 if k1 is None else k1, b=saved_b if b is None else b)
    index.restore(segments, terms)
    return index, settings


def _load(folder: Path) -> tuple[dict[str, Any], list[Segment], Terms]:
    cure = "Cure: build it again from the vector store, which holds all that it needs"
    try:
        content = _read_manifest(folder)
        terms = Terms()
        segments = [_read_segment(folder, entry, terms) for entry in content["segments"]]
        return content["settings"], segments, terms
    except FileNotFoundError as error:
        raise StorageError(f"{folder} holds no complete keyword index: {error}. {cure}.") from error
    except _DAMAGE as error:
        raise StorageError(f"{folder} holds a damaged keyword index: {error!r}. {cure}.") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return a manifest's settings and segments; a ValueError where another version wrote it or it is damaged."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"it has format {manifest['format']}, this version reads {FORMAT}")
    if manifest["checksum"] != _checksum_of(manifest["content"]):
        raise ValueError(f"{MANIFEST} has a wrong checksum")
    content: dict[str, Any] = manifest["content"]
    return content


def _checksum_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _known_segments(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the segments that the present manifest describes; none where it cannot be read."""
    try:
        return {entry["key"]: entry for entry in _read_manifest(folder)["segments"]}
    except _DAMAGE:
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
        "order_starts": segment.order.starts,
        "codes": np.array([column.codes for column in columns.values()], dtype=np.int32),
        "texts": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8),
    }
    codes = np.ascontiguousarray(segment.order.codes, "<u2")
    files: dict[str, Callable[[IO[bytes]], object]] = {  # no copies in memory: a segment of 100,000 chunks has 100 MB
        f"{segment.key}.npz": lambda file: np.savez(file, **arrays),
        f"{segment.key}.records": lambda file: file.write(memoryview(segment.records.blob)),
        f"{segment.key}.order": lambda file: file.write(codes.data),
    }
    for name, write in files.items():
        _write(folder / name, write)
    return {"key": segment.key, "checksums": {name: _checksum_of_file(folder / name) for name in files}}


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
        order=WordOrder(np.frombuffer(_map(folder / f"{key}.order"), dtype="<u2"), arrays["order_starts"]),
        records=Records(_map(folder / f"{key}.records"), arrays["record_starts"]),
        columns=Columns(columns, size),
        live=np.ones(size, dtype=np.bool_) if entry["live"] is None else _unpack(entry["live"], size),
        key=key,
    )


def _checksum_of_file(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _check(path: Path, expected: int) -> None:
    if _checksum_of_file(path) != expected:
        raise ValueError(f"{path.name} has a wrong checksum")


def _map(path: Path) -> bytes | mmap.mmap:
    """Return a file's bytes, mapped: they are not read into this process's own memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _pack(live: Any) -> str:
    return base64.b64encode(np.packbits(live).tobytes()).decode()


def _unpack(packed: str, size: int) -> Any:
    bits = np.frombuffer(base64.b64decode(packed), dtype=np.uint8)
    return np.unpackbits(bits, count=size).astype(np.bool_)


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file as a whole: readers see the old or the new file, even after a power cut."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        write(file)
        _sync(file)
    temporary.replace(path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sweep(folder: Path, keys: set[str]) -> None:
    """Remove files of segments that are gone. A file that another process has mapped may stay until the next save."""
    for path in [*folder.glob("*.npz"), *folder.glob("*.records"), *folder.glob("*.order"), *folder.glob("*.tmp")]:
        if path.name.split(".", 1)[0] not in keys or path.suffix == ".tmp":
            try:
                path.unlink(missing_ok=True)
            except PermissionError:
                logger.debug("%s is in use and stays for now", path)
