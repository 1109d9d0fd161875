"""The copy of a keyword engine on disk: segments are written once, and a manifest is replaced as a whole.

::

    manifest.json        format, stamp, analyzer, segments with their checksums and live rows; replacing it is a commit
    KEY.words            a segment, mapped into memory
    write.lock           held by the process that saves

A process that is killed at any moment leaves the previous manifest, and perhaps files that nothing refers to; the next
save removes them. Saving after an edit writes the new segments and the manifest, and nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mmap
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.errors import StorageError
from llama_index_contextual.keyword.segments import Segment, checksum_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

FORMAT: Final = 4
_MANIFEST: Final = "manifest.json"
_LOCK: Final = "write.lock"
_KEY: Final = re.compile(r"[0-9a-f]{32}")  # a name that leads out of the folder is none
# What reading a file raises that is cut, changed, or of another version.
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: another process would remove what this one writes before the manifest refers to it.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK):
            yield
    except OSError as error:
        raise StorageError(
            f"The keyword index in {folder} cannot be written ({error.strerror or error}). What was there before is "
            "unharmed. Cure: free space, make the folder writable, or choose another."
        ) from error


def write_segments(folder: Path, segments: Sequence[Segment], analyzer: str, stamp: str) -> list[Segment]:
    """Write what is new of some segments, then the manifest; return the same segments, mapped from there.

    Args:
        folder: What this process is :func:`writing`.
        segments: All that the folder shall hold.
        analyzer: Fingerprint of what made their terms.
        stamp: Of the caller; :func:`read_manifest` gives it as ``stamp``.
    """
    known = _known(folder)
    entries, mapped = [], []
    for one in segments:
        path, entry = folder / f"{one.key}.words", known.get(one.key)
        if entry is None or not path.exists() or path.stat().st_size != len(one.data):
            with path.open("wb") as file:
                file.write(one.data.data)
                sync(file)
            entry = {"key": one.key, "checksum": checksum_of(one.data)}
        live = None if one.count == len(one) else base64.b64encode(np.packbits(one.live).tobytes()).decode()
        entries.append({**entry, "live": live})
        mapped.append(Segment(map_file(path), one.key, one.live))
    content = {"stamp": stamp, "analyzer": analyzer, "segments": entries}
    temporary = folder / f"{_MANIFEST}.tmp"
    with temporary.open("wb") as file:
        file.write(json.dumps({"format": FORMAT, "checksum": _checksum_of(content), "content": content}).encode())
        sync(file)
    temporary.replace(folder / _MANIFEST)
    sweep(folder, "words", {one.key for one in segments})
    return mapped


def read_segments(folder: Path, analyzer: str) -> tuple[list[Segment], str]:
    """Return the segments of a folder, mapped, and the stamp; one of :data:`DAMAGE` where they cannot be used."""
    content = read_manifest(folder)
    if content["analyzer"] != analyzer:
        raise ValueError("its terms are of another analyzer")
    segments, stamp = [_read_segment(folder, entry) for entry in content["segments"]], content["stamp"]
    if not isinstance(stamp, str):
        raise TypeError(f"{_MANIFEST} has no stamp")
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(one.rows[one.live] for one in segments)])
    rows.sort(kind="stable")  # ascending runs, which it only merges
    if np.any(rows[1:] == rows[:-1]):
        raise ValueError("a row is in two segments")
    return segments, stamp


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what a manifest says; one of :data:`DAMAGE` where there is none that can be used."""
    manifest = json.loads((folder / _MANIFEST).read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"it has format {manifest['format']}, this version reads {FORMAT}")
    content: dict[str, Any] = manifest["content"]
    if manifest["checksum"] != _checksum_of(content):
        raise ValueError(f"{_MANIFEST} has a wrong checksum")
    return content


def _known(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the segments that the present manifest describes; none where it cannot be read."""
    try:
        return {entry["key"]: entry for entry in read_manifest(folder)["segments"]}
    except DAMAGE:
        return {}


def _read_segment(folder: Path, entry: dict[str, Any]) -> Segment:
    key, packed = entry["key"], entry["live"]
    if not _KEY.fullmatch(key):
        raise ValueError("no name of ours")
    segment = Segment(map_file(folder / f"{key}.words"), key)
    if checksum_of(segment.data) != entry["checksum"]:
        raise ValueError(f"{key}.words has a wrong checksum")
    segment.check()
    if packed is None:
        return segment
    bits = np.frombuffer(base64.b64decode(packed, validate=True), dtype=np.uint8)
    if len(bits) != -(-len(segment) // 8):
        raise ValueError(f"{_MANIFEST} has other rows than {key}.words")
    return Segment(segment.data, key, np.unpackbits(bits, count=len(segment)).astype(np.bool_))


def _checksum_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """Return a file's bytes, mapped: they are not read into this process's own memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"", dtype=np.uint8)


def sync(file: Any) -> None:
    """Have a file's bytes on disk, so that they survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sweep(folder: Path, suffix: str, keys: Collection[str]) -> None:
    """Remove files of other keys. One that another process has mapped may stay on Windows until the next save."""
    for path in folder.glob(f"*.{suffix}"):
        if path.stem not in keys:
            with contextlib.suppress(OSError):
                path.unlink()
