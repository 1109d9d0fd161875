"""Arrays in a folder: ``KIND-KEY-NAME.npy``, written once, and ``KIND.json``, whose replacement commits a change.

A part is a set of arrays that never changes. What a crash leaves is the old or the new state; a file that is cut,
changed or lost is noticed by its checksum.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from filelock import FileLock

from llama_index_contextual.durable import write_atomically
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

FORMAT: Final = 1
# What reading a folder raises where it is damaged, or of something else.
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, RecursionError)


class ArrayPart(NamedTuple):
    """Some arrays by name, and the key of their files; "" before they are written."""

    key: str
    arrays: Mapping[str, npt.NDArray[Any]]


@contextlib.contextmanager
def exclusive(folder: Path, what: str) -> Iterator[None]:
    """Make a folder, and let one process at a time write there.

    Raises:
        StorageError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "write.lock"):
            yield
    except OSError as error:
        raise StorageError(
            f"{what} in {folder} cannot be written ({error.strerror or error}). Cure: free space, or make it writable."
        ) from error


def write_parts(folder: Path, kind: str, parts: Sequence[ArrayPart], content: Any) -> list[ArrayPart]:
    """Write the parts that have no key yet, then the file that names all of them; return them with their keys.

    Args:
        folder: That exists.
        kind: The beginning of the files' names.
        parts: In their order.
        content: Anything that JSON keeps, returned by :func:`read_parts`.
    """
    known = _checksums(folder, kind)
    written, listed = [], []
    for part in parts:
        key = part.key if part.key in known else uuid.uuid4().hex[:12]
        sums = known.get(key) or {
            name: _write_array(folder / f"{kind}-{key}-{name}.npy", array) for name, array in part.arrays.items()
        }
        written.append(ArrayPart(key, part.arrays))
        listed.append({"key": key, "checksums": sums})
    body = {"format": FORMAT, "content": content, "parts": listed}
    manifest = {**body, "checksum": _checksum_of(body)}
    write_atomically(folder / f"{kind}.json", json.dumps(manifest).encode())
    keys = {part.key for part in written}
    for path in folder.glob(f"{kind}-*.npy"):
        if path.name.split("-")[1] not in keys:
            with contextlib.suppress(OSError):  # a reader on Windows has it open
                path.unlink()
    return written


def read_parts(folder: Path, kind: str) -> tuple[list[ArrayPart], Any]:
    """Return the parts of a folder, mapped into memory, and the content that was written beside them.

    Raises:
        DAMAGE: They are not there, or not as they were written.
    """
    manifest = _manifest(folder, kind)
    parts = []
    for part in manifest["parts"]:
        arrays = {}
        for name, checksum in part["checksums"].items():
            if not (str(part["key"]).isalnum() and name.isidentifier()):
                raise ValueError(f"{kind}.json names no part")
            path = folder / f"{kind}-{part['key']}-{name}.npy"
            if _checksum_of_file(path) != checksum:
                raise ValueError(f"{path} is not as it was written")
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        parts.append(ArrayPart(part["key"], arrays))
    return parts, manifest["content"]


def _write_array(path: Path, array: npt.NDArray[Any]) -> int:
    with path.open("w+b") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return _checksum_of_file(path)


def _checksum_of_file(path: Path) -> int:
    return zlib.crc32(np.memmap(path, np.uint8, "r").data)


def _manifest(folder: Path, kind: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / f"{kind}.json").read_bytes())
    checksum = manifest.pop("checksum")
    if manifest["format"] != FORMAT or checksum != _checksum_of(manifest):
        raise ValueError(f"{kind}.json is not as it was written")
    return manifest


def _checksums(folder: Path, kind: str) -> dict[str, dict[str, int]]:
    try:
        return {part["key"]: part["checksums"] for part in _manifest(folder, kind)["parts"]}
    except DAMAGE:
        return {}


def _checksum_of(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
