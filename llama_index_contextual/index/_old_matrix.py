"""Vectors by id that are compared with a question one by one, and their copy on disk.

A graph of neighbours, which vector stores search, loses small groups beside a large one. Comparing all loses none, and
takes 1 ms for 13,000 vectors of 384 numbers and 8 ms for 100,000.

On disk::

    manifest.json        format, stamp, how many rows there are and which are alive; replacing it commits a change
    KEY.vectors          the vectors, of length 1, as float32; mapped into memory
    KEY.ids              their ids, one JSON string a line
    write.lock           held by the process that saves

Both files only grow: saving after an edit writes what is new at their ends, and then the manifest. Whatever lies beyond
the rows that the manifest counts, a process left there that was killed. Once a third of the rows is dead, the next save
writes new files. The manifest holds the checksums of what it counts, and of itself.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mmap
import os
import re
import uuid
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.errors import FingerprintError, StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_LOCK: Final = "write.lock"
_BYTES: Final = 4  # of a number
_DEAD: Final = 3  # rows are thrown away once one of so many is dead
_SLACK: Final = 1e-5  # more than what rounding can change of a product of unit vectors in float32
_KEY: Final = re.compile(r"[0-9a-f]{32}")  # a name that leads out of the folder is none
# What reading a file raises that is cut, changed, or of another version.
_DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What of a matrix is on disk: its first rows.

    Attributes:
        key: Names the files.
        rows: How many.
        id_bytes: Length of their ids.
        vectors: Checksum of the vectors.
        ids: Checksum of the ids.
    """

    key: str
    rows: int = 0
    id_bytes: int = 0
    vectors: int = 0
    ids: int = 0


class Matrix:
    """Unit vectors by id. It never changes: each change makes another one, which shares what stays.

    Args:
        ids: Of each row.
        pieces: The rows, shape ``(some, dimensions)`` each, in order.
        live: False where a row was deleted or replaced.
        kept: What of it is on disk.
    """

    def __init__(
        self,
        ids: Sequence[str] = (),
        pieces: Sequence[Floats] = (),
        live: Bools | None = None,
        kept: _Kept | None = None,
    ) -> None:
        self.ids = ids
        self.pieces = tuple(pieces)
        self.live = np.ones(len(ids), dtype=np.bool_) if live is None else live
        self.kept = kept
        self._count = int(np.count_nonzero(self.live))

    def __len__(self) -> int:
        return self._count

    @property
    def dimensions(self) -> int:
        """Return how many numbers a vector has; 0 without vectors."""
        return self.pieces[0].shape[1] if self.pieces else 0

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Return the live row of each id."""
        return {self.ids[row]: row for row in np.flatnonzero(self.live).tolist()}

    def __contains__(self, id_: object) -> bool:
        return id_ in self._rows

    # Changing it

    def with_rows(self, ids: Sequence[str], vectors: npt.ArrayLike) -> Matrix:
        """Return a matrix with more vectors; an id that it has already gets the new one.

        Args:
            ids: Of an id that is given twice the last counts.
            vectors: Of any length, shape ``(ids, dimensions)``.

        Raises:
            FingerprintError: They have another number of dimensions.
        """
        last = {id_: at for at, id_ in enumerate(ids)}
        if not last:
            return self
        units = _units(np.asarray(vectors)[list(last.values())])
        if len(self) and units.shape[1] != self.dimensions:
            raise FingerprintError(
                f"vectors of {units.shape[1]} dimensions do not compare with those of {self.dimensions} that are "
                "there. Cure: the former embedding, or index everything again: reindex='all'."
            )
        before = self.without(last) if len(self) else Matrix()
        live = np.concatenate([before.live, np.ones(len(last), dtype=np.bool_)])
        pieces = _joined(before.pieces, units, first=1 if before.kept is not None else 0)
        return Matrix([*before.ids, *last], pieces, live, before.kept)

    def without(self, ids: Collection[str]) -> Matrix:
        """Return a matrix without some vectors; ids that it does not have are ignored."""
        rows = [row for id_ in ids if (row := self._rows.get(id_)) is not None]
        if not rows:
            return self
        live = self.live.copy()
        live[rows] = False
        smaller = Matrix(self.ids, self.pieces, live, self.kept)
        dead = len(live) - len(smaller)
        return smaller._compacted() if dead * _DEAD > len(live) else smaller

    def _compacted(self) -> Matrix:
        """Return the same vectors without dead rows."""
        rows = np.flatnonzero(self.live)
        return Matrix([self.ids[row] for row in rows.tolist()], [self._of(rows)] if len(rows) else [])

    # Reading it

    def nearest(
        self, question: npt.ArrayLike, top_k: int, among: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return ids and cosine similarities (-1 to 1) of the nearest vectors, best first, ties by id.

        Args:
            question: A vector of any length.
            top_k: Most results.
            among: Only these; ids that are not there are ignored. By default all.

        Raises:
            FingerprintError: The question has another number of dimensions.
        """
        rows = self._chosen(among)
        if top_k <= 0 or not len(rows):
            return []
        wide = np.asarray(question, dtype=np.float64).reshape(1, -1)
        if wide.shape[1] != self.dimensions:
            raise FingerprintError(
                f"a question of {wide.shape[1]} dimensions does not compare with vectors of {self.dimensions}. Cure: "
                "the embedding that made the vectors."
            )
        asked = _units(wide)[0]
        # Faster than matrix @ vector, which OpenBLAS spreads over threads that wait for one another.
        every = np.concatenate([np.einsum("ij,j->i", piece, asked) for piece in self.pieces])
        scores = every[rows]
        if len(rows) > top_k:
            rows = rows[scores >= np.partition(scores, len(rows) - top_k)[len(rows) - top_k] - _SLACK]
        # Again, more exactly and each row by itself: so equal vectors have equal scores wherever they stand.
        exact = np.einsum("ij,j->i", self._of(rows).astype(np.float64), asked.astype(np.float64))
        found = zip((self.ids[row] for row in rows.tolist()), exact.tolist(), strict=True)
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:top_k]

    def _chosen(self, among: Collection[str] | None) -> npt.NDArray[np.intp]:
        if among is None:
            return np.flatnonzero(self.live)
        find = self._rows.get
        rows = np.unique(np.fromiter((find(id_, -1) for id_ in among), dtype=np.intp))
        return rows[rows >= 0]

    def _of(self, rows: npt.NDArray[np.intp]) -> Floats:
        """Return the vectors of ascending rows."""
        starts = np.cumsum([0, *map(len, self.pieces)])
        cuts = rows.searchsorted(starts)
        parts = [
            piece[rows[start:stop] - first]
            for piece, first, start, stop in zip(self.pieces, starts, cuts, cuts[1:], strict=False)
            if start < stop
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    # Keeping it on disk

    def save(self, folder: Path, stamp: str) -> Matrix:
        """Keep it in a folder, and return the same matrix, mapped from there.

        Args:
            folder: Made where it is missing.
            stamp: Of what it shows; :meth:`load` asks for it.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / _LOCK):
                kept = self._write(folder, stamp)
                return Matrix(self.ids, _mapped(folder, kept, self.dimensions), self.live, kept)
        except OSError as error:
            raise StorageError(
                f"the vectors cannot be kept in {folder} ({error.strerror or error}). What was there before is "
                "unharmed. Cure: free space, make the folder writable, or choose another."
            ) from error

    def _write(self, folder: Path, stamp: str) -> _Kept:
        before = self.kept
        if before is None or _described(folder) != before:  # another process has written there since
            before = _Kept(uuid.uuid4().hex)
        kept = before
        vectors, ids = folder / f"{kept.key}.vectors", folder / f"{kept.key}.ids"
        row_bytes, starts = self.dimensions * _BYTES, np.cumsum([0, *map(len, self.pieces)]).tolist()
        new = [
            piece[max(0, before.rows - start) :]
            for piece, start in zip(self.pieces, starts, strict=False)
            if start + len(piece) > before.rows
        ]
        names = "".join(f"{json.dumps(id_)}\n" for id_ in self.ids[before.rows :]).encode()
        with _open_at(vectors, before.rows * row_bytes) as file:
            for piece in new:
                data = np.ascontiguousarray(piece, dtype="<f4").data.cast("B")
                file.write(data)
                kept = replace(kept, vectors=zlib.crc32(data, kept.vectors))
            _sync(file)
        with _open_at(ids, before.id_bytes) as file:
            file.write(names)
            _sync(file)
        kept = replace(
            kept, rows=len(self.ids), id_bytes=before.id_bytes + len(names), ids=zlib.crc32(names, before.ids)
        )
        content = {
            "stamp": stamp,
            "dimensions": self.dimensions,
            "kept": [kept.key, kept.rows, kept.id_bytes, kept.vectors, kept.ids],
            "live": None if len(self) == len(self.ids) else base64.b64encode(np.packbits(self.live).tobytes()).decode(),
        }
        manifest = {"format": _FORMAT, "checksum": _checksum_of(content), "content": content}
        temporary = folder / f"{_MANIFEST}.tmp"
        with temporary.open("wb") as file:
            file.write(json.dumps(manifest).encode())
            _sync(file)
        temporary.replace(folder / _MANIFEST)
        for path in [*folder.glob("*.vectors"), *folder.glob("*.ids")]:
            if path.stem != kept.key:
                with contextlib.suppress(OSError):  # on Windows another process may have it mapped
                    path.unlink()
        return kept

    @classmethod
    def load(cls, folder: Path, stamp: str) -> Matrix | None:
        """Return what was saved; None where there is none that is whole and has this stamp."""
        try:
            content = _content(folder)
            kept, dimensions = _Kept(*content["kept"]), int(content["dimensions"])
            if content["stamp"] != stamp:
                return None
            pieces = _mapped(folder, kept, dimensions)
            with (folder / f"{kept.key}.ids").open("rb") as file:
                names = file.read(kept.id_bytes)
            if [zlib.crc32(piece.data.cast("B")) for piece in pieces] != [kept.vectors][: len(pieces)]:
                return None
            if zlib.crc32(names) != kept.ids:
                return None
            ids = json.loads(f"[{','.join(names.decode().splitlines())}]")
            packed, live = content["live"], None
            if packed is not None:
                bits = np.frombuffer(base64.b64decode(packed), dtype=np.uint8)
                live = np.unpackbits(bits, count=len(ids)).astype(np.bool_)
            return cls(ids, pieces, live, kept) if len(ids) == kept.rows else None
        except _DAMAGE:
            return None


def _joined(before: Sequence[Floats], units: Floats, first: int) -> list[Floats]:
    """Return pieces with one more. Those in memory are joined, so that there are few, each larger than the next.

    Args:
        before: The pieces.
        units: The new one.
        first: How many stay as they are, because they are mapped from disk.
    """
    pieces = [*before, units]
    while len(pieces) > first + 1 and len(pieces[-2]) < 2 * len(pieces[-1]):
        pieces[-2:] = [np.concatenate(pieces[-2:])]
    return pieces


def _units(vectors: npt.NDArray[Any]) -> Floats:
    """Return vectors of length 1, shape ``(rows, dimensions)``; one without a direction becomes zeros."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    fine = np.isfinite(lengths) & (lengths > 0)
    units: Floats = np.divide(wide, lengths, out=np.zeros_like(wide), where=fine).astype(np.float32)
    return units


def _content(folder: Path) -> dict[str, Any]:
    """Return what a manifest says; one of :data:`_DAMAGE` where there is none, or none that can be used."""
    manifest = json.loads((folder / _MANIFEST).read_bytes())
    content: dict[str, Any] = manifest["content"]
    if manifest["format"] != _FORMAT or manifest["checksum"] != _checksum_of(content):
        raise ValueError("another version, or damaged")
    if not _KEY.fullmatch(content["kept"][0]):
        raise ValueError("no name of ours")
    return content


def _described(folder: Path) -> _Kept | None:
    try:
        return _Kept(*_content(folder)["kept"])
    except _DAMAGE:
        return None


def _checksum_of(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _mapped(folder: Path, kept: _Kept, dimensions: int) -> list[Floats]:
    """Return the vectors of a file, without reading them into this process's own memory."""
    length = kept.rows * dimensions * _BYTES
    if not length:
        return []
    with (folder / f"{kept.key}.vectors").open("rb") as file:
        data = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)  # a ValueError where it is shorter
    return [np.frombuffer(data, dtype="<f4").reshape(kept.rows, dimensions)]


def _open_at(path: Path, place: int) -> Any:
    """Open a file to write from a place on; what is there already was never committed."""
    file = path.open("r+b" if place else "wb")
    file.seek(place)
    return file


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
