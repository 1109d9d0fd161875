"""Rows as arrays in two parts that never change, a large one and a small one of what was added since, and their files.

In memory a part comes with a mask of its living rows (None: all) and the key of its files; ``ids`` are the numbers of
its rows, ascending. In a folder it is ``KIND-KEY-NAME.npy``, written once, and ``KIND.json``, whose replacement commits
a change. What a crash leaves is the old or the new state; a file that is cut, changed or lost is noticed by its
checksum.
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
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FORMAT: Final = 2
# What reading a folder raises where it is damaged, or of something else.
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, RecursionError)
_SHARE: Final = 4  # a small part joins the large one when it has a fourth of its rows


def best_rows(every: Ints, scores: Floats, top_k: int, places: Ints) -> tuple[Ints, Floats]:
    """The rows with the highest scores, best first, ties by number, and those that tie with the last.

    Args:
        every: Number of each row.
        scores: Of each row.
        top_k: How many.
        places: Of the rows that count.
    """
    if top_k <= 0:
        return every[:0], scores[:0]
    values = scores[places]
    if len(values) > top_k:
        best = values >= np.partition(values, len(values) - top_k)[len(values) - top_k]
        places, values = places[best], values[best]
    rows = every[places]
    order = np.lexsort((rows, -values))
    return rows[order], values[order]


def living(part: Any, live: Bools | None) -> Bools:
    """Mask of the living rows of a part."""
    return np.ones(len(part.ids), np.bool_) if live is None else live


def join_parts(parts: Iterable[tuple[Any, Bools | None, str]], merge: Callable[[Any], Any]) -> list[Any]:
    """A large part and perhaps a small one: the small ones are merged, and with the large one where they grew.

    A part of which half is dead is merged, too. So each row is merged a few times, however often rows are added.
    """
    alive_parts = [part for part in parts if living(*part[:2]).any()]
    if not alive_parts:
        return []
    base, *rest = alive_parts
    alive, added = int(living(*base[:2]).sum()), sum(len(part.ids) for part, _, _ in rest)
    is_large = added * _SHARE <= alive and 2 * alive >= len(base[0].ids)
    kept, merged = ([base], rest) if is_large else ([], [base, *rest])
    if len(merged) == 1 and (is_large or base[1] is None):
        return [*kept, *merged]
    return [*kept, (merge([part[:2] for part in merged]), None, "")] if merged else kept


def without_rows(parts: tuple[tuple[Any, Bools | None, str], ...], rows: Ints) -> Any:
    """Parts in which some rows are dead; the same object where they have none of them."""
    changed, is_same = [], True
    for part, live, key in parts:
        dead = living(part, live) & np.isin(part.ids, rows)
        is_same = is_same and not dead.any()
        changed.append((part, living(part, live) & ~dead if dead.any() else live, key))
    return parts if is_same else tuple(changed)


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
    known = {}
    with contextlib.suppress(*DAMAGE):
        known = {part["key"]: part["checksums"] for part in _manifest(folder, kind)["parts"]}
    written = [part if part.key in known else ArrayPart(uuid.uuid4().hex[:12], part.arrays) for part in parts]
    for key, arrays in written:
        if key not in known:
            known[key] = {name: _write_array(_file(folder, kind, key, name), one) for name, one in arrays.items()}
    listed = [{"key": key, "checksums": known[key]} for key, _ in written]
    body = {"format": FORMAT, "content": content, "parts": listed}
    temporary = folder / f".{kind}.json.new"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({**body, "checksum": _checksum_of(body)}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / f"{kind}.json")
    for path in folder.glob(f"{kind}-*.npy"):
        if path.name.split("-")[1] not in {key for key, _ in written}:
            with contextlib.suppress(OSError):  # a reader on Windows has it open
                path.unlink()
    return written


def read_parts(folder: Path, kind: str) -> tuple[list[ArrayPart], Any]:
    """The parts of a folder, mapped into memory, and the content that was written beside them.

    Raises:
        DAMAGE: They are not there, or not as they were written.
    """
    manifest = _manifest(folder, kind)
    parts = []
    for part in manifest["parts"]:
        paths = {name: _file(folder, kind, part["key"], name) for name in part["checksums"]}
        if any(_checksum_of_file(path) != part["checksums"][name] for name, path in paths.items()):
            raise ValueError(f"{kind}-{part['key']} is not as it was written")
        # As plain arrays, still mapped: slices of np.memmap are slow.
        arrays = {name: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for name, path in paths.items()}
        parts.append(ArrayPart(part["key"], arrays))
    return parts, manifest["content"]


def _file(folder: Path, kind: str, key: str, name: str) -> Path:
    if not (key.isalnum() and name.isidentifier()):
        raise ValueError(f"{kind}.json names no part")
    return folder / f"{kind}-{key}-{name}.npy"


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


def _checksum_of(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
