"""Files that survive a kill at any moment: replaced as a whole, or named by a manifest and mapped into memory.

A writer of a mapped folder holds its lock, writes its files, and then replaces ``manifest.json``, which names them and
holds their checksums and its own. Killed at any moment it leaves the previous manifest, and perhaps files that nothing
refers to; the next writer removes them. A reader takes what the manifest names, or nothing.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import mmap
import os
import re
import secrets
import stat
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


_STALE: Final = 3600.0  # seconds after which nobody is still at work on a new content


def write_atomically(path: Path, data: bytes, *, check: Callable[[], None] | None = None) -> os.stat_result:
    """Replace a file's content, and keep its mode; return what the new file says of itself.

    Args:
        path: The file.
        data: What it holds afterwards.
        check: Called when all of it is on disk, right before the file is replaced. Where it raises, the old content
            is kept.

    Raises:
        StorageError: That failed; the old content is kept.
    """
    temporary = ""
    try:
        _remove_stale(path)
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
        with Path(temporary).open("xb") as file:  # as readable for others as all files of this user
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).chmod(stat.S_IMODE(path.stat().st_mode))
        if check is not None:
            check()
        Path(temporary).replace(path)
    except BaseException as error:  # it may be interrupted, too
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. Cure: make its folder "
            "one that exists and that you may write, with free space, then do the same again."
        ) from error
    return status


def _remove_stale(path: Path) -> None:
    """Remove what writers of this file left that were killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):  # another writer does the same
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()


Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_MANIFEST: Final = "manifest.json"
_LOCK: Final = "write.lock"
_MOST_BYTES: Final = 64 << 20  # of a manifest: it holds one bit for each row
_KEY: Final = re.compile(r"[0-9a-f]{32}")  # a name that leads out of the folder is none
_PAGE: Final = 512  # numbers of 8 bytes that are summed at once
# What reading a file raises that is cut, changed, or of another version.
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError)


@contextlib.contextmanager
def writing(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder: another process would sweep what this one writes before the manifest refers to it.

    Args:
        folder: Made where it is missing.
        what: Names for a message what is written.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / _LOCK):
            yield
    except OSError as error:
        raise StorageError(
            f"{what} in {folder} cannot be written ({error.strerror or error}). What was there before is unharmed. "
            "Cure: free space, make the folder writable, or choose another."
        ) from error


def write_manifest(folder: Path, kind: int, content: dict[str, Any]) -> None:
    """Replace the manifest as a whole: readers see the old or the new one, even after a power cut.

    Args:
        folder: What this process is :func:`writing`.
        kind: Number of the format.
        content: JSON values.
    """
    temporary = folder / f"{_MANIFEST}.tmp"
    with temporary.open("wb") as file:
        file.write(json.dumps({"format": kind, "checksum": _checksum_of(content), "content": content}).encode())
        sync(file)
    temporary.replace(folder / _MANIFEST)


def read_manifest(folder: Path, kind: int) -> dict[str, Any]:
    """Return what a manifest says; one of :data:`DAMAGE` where there is none that can be used."""
    with (folder / _MANIFEST).open("rb") as file:
        manifest = json.loads(file.read(_MOST_BYTES))
    if manifest["format"] != kind:
        raise ValueError(f"it has format {manifest['format']}, this version reads {kind}")
    content: dict[str, Any] = manifest["content"]
    if manifest["checksum"] != _checksum_of(content):
        raise ValueError(f"{_MANIFEST} has a wrong checksum")
    return content


def _checksum_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def path_of(folder: Path, key: str, suffix: str) -> Path:
    """Return the path of a file that a manifest names; a ValueError or TypeError where the key is none of ours."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no name of ours")
    return folder / f"{key}.{suffix}"


def map_file(path: Path) -> Bytes:
    """Return the bytes of a file without reading them into this process's own memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"", np.uint8)


def sync(file: Any) -> None:
    """Have a file's bytes on disk, so that they survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sweep(folder: Path, suffix: str, keys: Collection[str]) -> None:
    """Remove files of other keys. One that another process has mapped may stay on Windows until the next time."""
    for path in folder.glob(f"*.{suffix}"):
        if path.stem not in keys:
            with contextlib.suppress(OSError):
                path.unlink()


def write_segments(
    folder: Path, kind: int, suffix: str, segments: Sequence[tuple[str, Bytes, Bools]], facts: dict[str, Any]
) -> list[Bytes]:
    """Write the files of new segments, then the manifest; return the bytes of all segments, mapped from there.

    Args:
        folder: What this process is :func:`writing`.
        kind: Number of the format.
        suffix: Of the files.
        segments: All that the folder shall hold: the key of each, its bytes (a multiple of 8), which of its rows live.
        facts: JSON values that :func:`read_segments` returns.
    """
    try:
        checksums = {entry["key"]: entry["checksum"] for entry in read_manifest(folder, kind)["segments"]}
    except DAMAGE:
        checksums = {}
    entries, mapped = [], []
    for key, data, live in segments:
        path = path_of(folder, key, suffix)
        if key not in checksums or not path.exists() or path.stat().st_size != len(data):
            with path.open("wb") as file:
                file.write(data.data)
                sync(file)
            checksums[key] = checksum_of(data)
        entries.append({"key": key, "checksum": checksums[key], "live": _packed(live)})
        mapped.append(map_file(path))
    write_manifest(folder, kind, {**facts, "segments": entries})
    sweep(folder, suffix, {key for key, _, _ in segments})
    return mapped


def read_segments(folder: Path, kind: int, suffix: str) -> tuple[list[tuple[str, Bytes, str | None]], dict[str, Any]]:
    """Return the key and the bytes of each segment, what :func:`unpacked` takes, and the other facts of the manifest.

    One of :data:`DAMAGE` is raised where they cannot be used.
    """
    facts, segments = read_manifest(folder, kind), []
    if not isinstance(facts["stamp"], str):
        raise TypeError("the manifest has no stamp")
    for entry in facts.pop("segments"):
        path = path_of(folder, entry["key"], suffix)
        if checksum_of(map_file(path)) != entry["checksum"]:
            raise ValueError(f"{path.name} has a wrong checksum")
        # Mapped anew: of all that was read for the checksum, questions need some, and the rest leaves this process.
        segments.append((entry["key"], map_file(path), entry["live"]))
    return segments, facts


def joined(arrays: Iterable[npt.NDArray[Any]]) -> Bytes:
    """Return the bytes of arrays, one after the other, and zeros up to a multiple of 8."""
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.concatenate([*parts, np.zeros(-sum(map(len, parts)) % 8, np.uint8)])


def checksum_of(data: Bytes) -> int:
    """Return a checksum of bytes, 8 at a time, at the speed of memory: that of the sums of their pages."""
    words = data.view("<u8")
    whole = len(words) // _PAGE * _PAGE
    return zlib.crc32(words[whole:].data, zlib.crc32(words[:whole].reshape(-1, _PAGE).sum(axis=1).data))


def _packed(live: Bools) -> str | None:
    """Return which rows are alive as text, one bit each; None where all are."""
    return None if live.all() else base64.b64encode(np.packbits(live).tobytes()).decode()


def unpacked(text: str | None, count: int) -> Bools:
    """Return which rows are alive, as a manifest says it; a ValueError where it is of another number of rows."""
    if text is None:
        return np.ones(count, dtype=np.bool_)
    bits = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    if len(bits) != -(-count // 8):
        raise ValueError("the manifest and a file hold other rows")
    return np.unpackbits(bits, count=count).astype(np.bool_)
