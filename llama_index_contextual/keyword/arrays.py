"""Rows as arrays in two parts that never change, a large one and a small one of what was added since, and their files.

In a folder a part is ``KIND-KEY-NAME.npy``, written once, and ``KIND.json`` names all parts: its replacement commits a
change, so that a crash leaves the old or the new state. A file that is cut, changed or lost is noticed by its checksum.
"""

from __future__ import annotations

import contextlib
import json
import uuid
import zlib
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Self

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

FORMAT: Final = 3
# What reading a folder raises where it is damaged, or of something else.
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, RecursionError)
_SHARE: Final = 4  # a small part joins the large one when it has a fourth of its rows


@dataclass(frozen=True, eq=False)
class RowArrays:
    """Arrays of some rows, which never change; ``ids`` are the numbers of the rows, ascending."""

    ids: Ints

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> Self:
        """The living rows of some parts as one."""
        names = [field.name for field in fields(cls)]
        every = {name: np.concatenate([getattr(one.arrays, name)[one.live] for one in parts]) for name in names}
        is_sorted = (np.diff(every["ids"]) > 0).all()
        order = slice(None) if is_sorted else np.argsort(every["ids"])  # where a copy of a database was put back
        return cls(**{name: array[order] for name, array in every.items()})

    def is_sound(self) -> bool:
        """Whether the arrays fit together; a file may hold others than were written."""
        raise NotImplementedError


class Part(NamedTuple):
    """Arrays of some rows, which of these live, and the key of the arrays' files; "" before they are written."""

    arrays: Any
    live: Bools
    key: str = ""


class ArrayIndex:
    """Rows, which are numbers of the caller. It never changes: a change makes another one, which shares much.

    Args:
        parts: A large one, and perhaps a small one.
    """

    made_of: ClassVar[type[RowArrays]]

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.parts = tuple(parts)

    def _of(self, parts: Iterable[Part]) -> Self:
        """Index of other parts with the same settings."""
        return type(self)(parts)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def every(self) -> Ints:
        """Number of each row, part by part, dead ones included."""
        return np.concatenate([np.empty(0, np.int64), *(part.arrays.ids for part in self.parts)])

    @cached_property
    def live(self) -> Bools:
        """Which of these rows live."""
        return np.concatenate([np.empty(0, np.bool_), *(part.live for part in self.parts)])

    @cached_property
    def _places(self) -> Ints:
        """Places of the living rows in :attr:`every`, by number."""
        places = np.flatnonzero(self.live)
        return places[np.argsort(self.every[places], kind="stable")]

    @cached_property
    def rows(self) -> Ints:
        """Numbers of all living rows, ascending."""
        return self.every[self._places]

    def find(self, wanted: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """Places in :attr:`every` of those of some rows that are there, and the places of these among the wanted."""
        at, found = matches(self.rows, np.asarray(wanted, np.int64))
        return self._places[at], found

    def by_part(self, places: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
        """Arrays of each part, those of some places in :attr:`every` that are in it, and where these are among all."""
        start = 0
        for part in self.parts:
            at = np.flatnonzero((places >= start) & (places < start + len(part.live)))
            yield part.arrays, places[at] - start, at
            start += len(part.live)

    def best(self, scores: Floats, top_k: int, places: Ints) -> tuple[Ints, Floats]:
        """The rows with the highest scores, best first, ties by number, and those that tie with the last.

        Args:
            scores: Of each place.
            top_k: How many.
            places: In :attr:`every`, of the rows that count.
        """
        if top_k <= 0:
            return self.every[:0], scores[:0]
        if len(scores) > top_k:
            kept = scores >= np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
            places, scores = places[kept], scores[kept]
        rows = self.every[places]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]

    # Changing it

    def with_arrays(self, arrays: RowArrays) -> Self:
        """Index with more rows; one that is there already gets the new arrays."""
        return self._joined([*_without(self.parts, arrays.ids), _living(arrays)])

    def without(self, rows: Iterable[int] | Ints) -> Self:
        """Index without some rows; rows that it does not have are ignored."""
        unwanted = rows if isinstance(rows, np.ndarray) else np.array([*rows], np.int64)
        parts = _without(self.parts, unwanted)
        is_same = all(one.live is other.live for one, other in zip(parts, self.parts, strict=True))
        return self if is_same else self._joined(parts)

    def _joined(self, parts: Iterable[Part]) -> Self:
        """Index of a large part and perhaps a small one: small ones are merged, with the large one where they grew.

        A part of which half is dead is merged, too. So each row is merged a few times, however often rows are added.
        """
        kept, merged = list[Part](), [part for part in parts if part.live.any()]
        if merged:
            alive, added = int(merged[0].live.sum()), sum(len(part.live) for part in merged[1:])
            if added * _SHARE <= alive and 2 * alive >= len(merged[0].live):
                kept, merged = merged[:1], merged[1:]
        if len(merged) > 1 or (merged and not kept):
            merged = [_living(self.made_of.merge(merged))]
        return self._of([*kept, *merged])

    # Keeping it on disk

    def save(self, folder: Path, kind: str, content: Any) -> Self:
        """Write the parts that are in no file yet, then the file that names all of them.

        Args:
            folder: Made where it is missing; one process at a time writes there.
            kind: The beginning of the files' names.
            content: Anything that JSON keeps, returned by :meth:`load`.

        Returns:
            The same index, whose parts have the keys of their files.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "write.lock"):
                return self._of(_write(folder, kind, self.parts, content))
        except OSError as error:
            reason, cure = error.strerror or error, "Cure: free space, or make it writable."
            raise StorageError(f"{kind} in {folder} cannot be written ({reason}). {cure}") from error

    def load(self, folder: Path, kind: str) -> tuple[Self, Any]:
        """The index of a folder with the settings of this one, its arrays mapped into memory, and the content beside.

        All rows live, but those that stand in a later part again.

        Raises:
            DAMAGE: They are not there, or not as they were written.
        """
        manifest, parts = _manifest(folder, kind), list[Part]()
        for key, checksums in manifest["parts"].items():
            files = {name: (_file(folder, kind, key, name), checksum) for name, checksum in checksums.items()}
            arrays = self.made_of(**{name: _read_array(*one) for name, one in files.items()})
            if not (arrays.is_sound() and arrays.ids.dtype == np.int64 and (arrays.ids[1:] > arrays.ids[:-1]).all()):
                raise ValueError(f"the arrays of {kind}-{key} do not fit together")
            parts = [*_without(parts, arrays.ids), _living(arrays)._replace(key=key)]
        return self._of(parts), manifest["content"]


def matches(ascending: Numbers, wanted: Numbers) -> tuple[Ints, Ints]:
    """Places in ascending numbers of those of some others that are among them, and the places of these."""
    if not len(ascending):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.minimum(ascending.searchsorted(wanted), len(ascending) - 1)
    hit = (ascending[at] == wanted).nonzero()[0]
    return at[hit], hit


def _living(arrays: RowArrays) -> Part:
    return Part(arrays, np.ones(len(arrays.ids), np.bool_))


def _without(parts: Iterable[Part], rows: Ints) -> list[Part]:
    """Parts in which some rows are dead; a part that has none of them stays as it is."""
    dead = [(part, part.live & np.isin(part.arrays.ids, rows)) for part in parts]
    return [part._replace(live=part.live & ~of_part) if of_part.any() else part for part, of_part in dead]


def _write(folder: Path, kind: str, parts: Iterable[Part], content: Any) -> list[Part]:
    """The parts with the keys of their files."""
    known = dict[str, dict[str, int]]()
    with contextlib.suppress(*DAMAGE):
        known = _manifest(folder, kind)["parts"]
    written = [part if part.key in known else part._replace(key=uuid.uuid4().hex[:12]) for part in parts]
    checksums = {part.key: known.get(part.key) or _write_arrays(folder, kind, part) for part in written}
    body = json.dumps({"format": FORMAT, "content": content, "parts": checksums}).encode()
    temporary = folder / f".{kind}.json.new"
    # Nothing waits until it is on disk: what a loss of power cuts is noticed by its checksum, and derived again.
    temporary.write_bytes(b"%d\n%b" % (zlib.crc32(body), body))
    temporary.replace(folder / f"{kind}.json")
    for path in folder.glob(f"{kind}-*.npy"):
        if path.name.split("-")[1] not in checksums:
            with contextlib.suppress(OSError):  # a reader on Windows has it open
                path.unlink()
    return written


def _write_arrays(folder: Path, kind: str, part: Part) -> dict[str, int]:
    """Checksums of the arrays of a part, by name."""
    checksums = {}
    for name in (field.name for field in fields(part.arrays)):
        path = _file(folder, kind, part.key, name)
        np.save(path, getattr(part.arrays, name), allow_pickle=False)
        checksums[name] = _checksum_of(path)
    return checksums


def _read_array(path: Path, checksum: int) -> Numbers:
    if _checksum_of(path) != checksum:
        raise ValueError(f"{path.name} is not as it was written")
    # As a plain array, still mapped: slices of np.memmap are slow.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _file(folder: Path, kind: str, key: str, name: str) -> Path:
    if not (key.isalnum() and name.isidentifier()):
        raise ValueError(f"{kind}.json names no part")
    return folder / f"{kind}-{key}-{name}.npy"


def _checksum_of(path: Path) -> int:
    return zlib.crc32(np.memmap(path, np.uint8, "r").data)


def _manifest(folder: Path, kind: str) -> dict[str, Any]:
    checksum, _, body = (folder / f"{kind}.json").read_bytes().partition(b"\n")
    manifest: dict[str, Any] = json.loads(body)
    if manifest["format"] != FORMAT or int(checksum) != zlib.crc32(body):
        raise ValueError(f"{kind}.json is not as it was written")
    return manifest
