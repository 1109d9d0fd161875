"""Rows as arrays in two parts that never change, a large one and a small one of what was added since, and their file.

The file is replaced as a whole, so that a crash leaves the old or the new one. Damage is noticed by its checksum.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from llama_index_contextual.utils.errors import StorageError

if TYPE_CHECKING:
    from typing_extensions import Self

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

Part = tuple[Any, Bools]  # arrays of rows, and which of these live

_SHARE: Final = 4  # a small part joins the large one when it has a fourth of its rows


@dataclass(frozen=True, eq=False)
class RowArrays:
    """Arrays of some rows, which never change; ``ids`` are the numbers of the rows."""

    ids: Ints

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> Self:
        """Those rows of some arrays that live, as one."""
        return cls(
            *(
                np.concatenate([vars(one)[name][live] for one, live in parts])
                for name in vars(parts[0][0])
            )
        )


class ArrayIndex:
    """Rows, which are numbers of the caller. It never changes: a change makes another one, which shares much.

    Args:
        parts: A large one, and perhaps a small one.
    """

    made_of: ClassVar[type[RowArrays]]

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = tuple(parts)
        self.every: Ints = np.concatenate(
            [np.empty(0, np.int64), *(arrays.ids for arrays, _ in parts)]
        )
        """Number of each row, part by part, dead ones included."""
        self.live: Bools = np.concatenate([np.empty(0, np.bool_), *(live for _, live in parts)])
        """Which of these rows live."""
        places = np.flatnonzero(self.live)
        self._places = places[np.argsort(self.every[places], kind="stable")]
        self.rows = self.every[self._places]
        """Numbers of all living rows, ascending."""

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, wanted: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """Places in :attr:`every` of those of some rows that are there, and the places of these among the wanted."""
        at, found = matches(self.rows, np.asarray(wanted, np.int64))
        return self._places[at], found

    def by_part(self, places: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
        """Arrays of each part, those of some places in :attr:`every` that are in it, and where these are among all."""
        start = 0
        for arrays, live in self.parts:
            at = np.flatnonzero((places >= start) & (places < start + len(live)))
            yield arrays, places[at] - start, at
            start += len(live)

    def best(self, scores: Floats, top_k: int, places: Ints) -> tuple[Ints, Floats]:
        """The rows with the highest scores, best first, ties by number, and those that tie with the last.

        Args:
            scores: Of each place.
            top_k: How many, at least one.
            places: In :attr:`every`, of the rows that count.
        """
        if len(scores) > top_k:
            kept = scores >= np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
            places, scores = places[kept], scores[kept]
        rows = self.every[places]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]

    def changed(self, unwanted: Sequence[int] | Ints = (), *added: RowArrays) -> Self:
        """Index without some rows, and with those of further arrays; unwanted rows that it does not have are ignored.

        The parts behind the first are merged, and with it where they grew or half of it is dead. So each row is merged
        a few times, however often rows are added.
        """
        if not added and not len(matches(self.rows, np.asarray(unwanted, np.int64))[0]):
            return self
        parts = [(arrays, live & ~np.isin(arrays.ids, unwanted)) for arrays, live in self.parts]
        parts += [(arrays, np.ones(len(arrays.ids), np.bool_)) for arrays in added]
        large, small = parts[:1], parts[1:]
        alive = sum(int(live.sum()) for _, live in large)
        if (
            max(
                _SHARE * sum(len(live) for _, live in small),
                sum(len(live) for _, live in large) / 2,
            )
            > alive
        ):
            large, small = [], parts
        return type(self)([*large, *self._merged(small)])

    def _merged(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Parts as one without dead rows."""
        if not parts or (len(parts) == 1 and parts[0][1].all()):
            return parts
        merged = self.made_of.merge(parts)
        return [(merged, np.ones(len(merged.ids), np.bool_))]

    # Keeping it on disk

    def save(self, path: Path, content: Any) -> None:
        """Write the rows to a file, and beside them anything that JSON keeps.

        Raises:
            StorageError: The folder cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.parent / "write.lock"):
                _write(
                    path,
                    content,
                    next((vars(arrays) for arrays, _ in self._merged(self.parts)), {}),
                )
        except OSError as error:
            reason, cure = error.strerror or error, "Cure: free space, or make it writable."
            raise StorageError(f"{path.parent} cannot be written ({reason}). {cure}") from error

    def load(self, path: Path) -> tuple[Self, Any]:
        """The index in a file, with the settings of this one, its arrays mapped into memory, and what is beside them.

        Raises:
            Exception: Of any kind, where the file is missing or not as it was written.
        """
        arrays, content = _read(path)
        return (self.changed((), self.made_of(**arrays)) if arrays else self), content


def _write(path: Path, content: Any, arrays: Mapping[str, Numbers]) -> None:
    """Replace a file: the length of the head, the head as JSON, arrays of large numbers first, a checksum."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that all are aligned
    head = json.dumps(
        [content, [(name, array.dtype.str, array.shape) for name, array in ordered]]
    ).encode()
    head += b" " * (-len(head) % 8)
    checksum, temporary = 0, path.with_name(f".{path.name}.new")
    parts: list[Any] = [
        len(head).to_bytes(8, "little"),
        head,
        *(np.ascontiguousarray(one).data for _, one in ordered),
    ]
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part)
            checksum = zlib.crc32(part, checksum)
        file.write(checksum.to_bytes(4, "little"))
    # Nothing waits until it is on disk: what a loss of power cuts is noticed by the checksum, and derived again.
    temporary.replace(path)


def _read(path: Path) -> tuple[dict[str, Numbers], Any]:
    # A plain array, still mapped: slices of np.memmap are slow.
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    if zlib.crc32(data[:-4].data) != int.from_bytes(data[-4:], "little"):
        raise ValueError(f"{path.name} is not as it was written")
    start, arrays = 8 + int.from_bytes(data[:8], "little"), {}
    content, layout = json.loads(data[8:start].tobytes())
    for name, kind, shape in layout:
        size = np.dtype(kind).itemsize * math.prod(shape)
        arrays[name] = data[start : start + size].view(kind).reshape(shape)
        start += size
    return arrays, content


def matches(ascending: Numbers, wanted: Numbers) -> tuple[Ints, Ints]:
    """Places in ascending numbers of those of some others that are among them, and the places of these."""
    if not len(ascending):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = np.minimum(ascending.searchsorted(wanted), len(ascending) - 1)
    hit = (ascending[at] == wanted).nonzero()[0]
    return at[hit], hit
