"""Rows in arrays that never change, and the file that keeps them.

An index has at most two parts: a large one, and a small one of what was added since.
The file is replaced as a whole, so that a crash leaves the old or the new one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
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

Rows = Sequence[int] | Ints  # numbers of rows
ScoredRows = tuple[Ints, Floats]  # numbers of rows, best first, and their scores
Part = tuple[Any, Bools]  # the arrays of some rows, and which of these rows live

_MERGE_FACTOR: Final = 4  # a small part joins the large one when it has a fourth of its rows
_BLOCK_SIZE: Final = 32  # values of which the largest is compared first
_CONTENT: Final = "content"  # the array with the JSON that stands beside the others in a file


@dataclass(frozen=True, eq=False)
class RowArrays:
    """The arrays of some rows.

    Attributes:
        ids: The number of each row.
        matrices: The names of the arrays that have two dimensions.
    """

    ids: Ints
    matrices: ClassVar[Collection[str]] = ()

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> Self:
        """Return the living rows of several arrays as one."""
        columns = {}
        for name in vars(parts[0][0]):
            columns[name] = np.concatenate([vars(arrays)[name][live] for arrays, live in parts])
        return cls(**columns)

    def check(self) -> None:
        """Raise a ValueError where the arrays do not fit together, so that no row can be wrong."""
        require(all(len(column) == len(self.ids) for column in vars(self).values()))


class ArrayIndex:
    """An index of rows, which the caller numbers. A change returns a new index and copies little.

    Args:
        parts: A large one, and perhaps a small one.
    """

    made_of: ClassVar[type[RowArrays]]

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = tuple(parts)
        ids = [arrays.ids for arrays, _ in parts]
        self.every: Ints = np.concatenate([np.empty(0, np.int64), *ids])
        """The number of each row, part by part, dead rows included."""
        self.live: Bools = np.concatenate([np.empty(0, np.bool_), *(live for _, live in parts)])
        """Which of these rows live."""
        living_places = np.flatnonzero(self.live)
        order = np.argsort(self.every[living_places], kind="stable")
        self._places = living_places[order]
        self.rows: Ints = self.every[self._places]
        """The numbers of all living rows, ascending."""

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, rows: Rows) -> tuple[Ints, Ints]:
        """Return the places of live rows in :attr:`every`, and in ``rows``."""
        known, hits = matches(self.rows, np.asarray(rows, np.int64))
        return self._places[known], hits

    def by_part(self, places: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
        """Yield the arrays of each part, the places within it, and their places in ``places``."""
        start = 0
        for arrays, live in self.parts:
            hits = np.flatnonzero((places >= start) & (places < start + len(live)))
            yield arrays, places[hits] - start, hits
            start += len(live)

    def best(self, scores: Floats, top_k: int, places: Ints) -> ScoredRows:
        """Return the rows with the highest scores, best first, ties by number.

        Rows that tie with the last of them are added, so that the caller can break ties.

        Args:
            scores: The score of each place.
            top_k: How many rows, at least 1.
            places: Places in :attr:`every`.
        """
        if len(scores) > top_k:
            lowest = kth_largest(scores, top_k)
            is_best = scores >= lowest
            places = places[is_best]
            scores = scores[is_best]
        rows = self.every[places]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]

    def changed(self, unwanted: Rows = (), *added: RowArrays) -> Self:
        """Return the index without some rows and with further arrays; unknown rows are ignored.

        The parts behind the first are merged, and with it where they grew large or half of it is
        dead. So each row is merged a few times only, however often rows are added.
        """
        if not added and not len(self.find(unwanted)[0]):
            return self
        parts = [(arrays, live & ~np.isin(arrays.ids, unwanted)) for arrays, live in self.parts]
        parts += map(_living, added)
        sizes = [len(live) for _, live in parts]
        living_rows = int(parts[0][1].sum())
        is_mostly_dead = sizes[0] > 2 * living_rows
        if is_mostly_dead or _MERGE_FACTOR * sum(sizes[1:]) > living_rows:
            return type(self)(self._merged(parts))
        return type(self)([parts[0], *self._merged(parts[1:])])

    def _merged(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts as one without dead rows."""
        if len(parts) > 1 or not all(live.all() for _, live in parts):
            return [_living(self.made_of.merge(parts))]
        return parts

    # Files

    def to_arrays(self) -> dict[str, Numbers]:
        """Return the arrays of the living rows by name; none without rows."""
        columns: dict[str, Numbers] = {}
        for arrays, _ in self._merged(self.parts):
            columns |= vars(arrays)
        return columns

    def from_arrays(self, columns: Mapping[str, Numbers]) -> Self:
        """Return the index of the arrays that :meth:`to_arrays` gave.

        Raises:
            ValueError: The arrays do not fit together.
        """
        if not columns:
            return self
        arrays = self.made_of(**columns)
        for name, column in columns.items():
            dimensions = 2 if name in self.made_of.matrices else 1
            require(column.ndim == dimensions and column.dtype.kind in "iuf")
        require(arrays.ids.dtype == np.int64)
        arrays.check()
        return self.changed((), arrays)

    def save(self, path: Path, content: Any) -> None:
        """Write the rows to a file, and beside them what JSON can keep.

        Raises:
            StorageError: The folder cannot be written.
        """
        write_arrays(path, content, self.to_arrays())

    def load(self, path: Path) -> tuple[Self, Any]:
        """Return the index in a file, and what was written beside it.

        Raises:
            StorageError: The file is missing or damaged.
        """
        content, columns = read_arrays(path)
        with explained(path):
            return self.from_arrays(columns), content


def _living(arrays: RowArrays) -> Part:
    return arrays, np.ones(len(arrays.ids), np.bool_)


def write_arrays(path: Path, content: Any, arrays: Mapping[str, Numbers]) -> None:
    """Replace a file by arrays and JSON, in numpy's format ``npz``, a ZIP archive with checksums.

    Nothing waits until the file is on the disk: the checksums notice what a loss of power cuts.

    Raises:
        StorageError: The folder cannot be written.
    """
    text = np.frombuffer(json.dumps(content).encode(), np.uint8)
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / "write.lock"):
            with temporary.open("wb") as file:
                np.savez(file, **{**arrays, _CONTENT: text})  # type: ignore[arg-type]
            temporary.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(
            f"{path.parent} cannot be written ({reason}). Free space, or make it writable."
        ) from error


def read_arrays(path: Path) -> tuple[Any, dict[str, Numbers]]:
    """Return the content and the arrays of a file that :func:`write_arrays` wrote.

    The file is read and not mapped: where a mapped file is cut, the process ends.

    Raises:
        StorageError: The file is missing or damaged.
    """
    arrays = {}
    with explained(path):
        require(path.is_file())  # to open a pipe would wait for its writer
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                # Not by numpy alone, which reads no further than an array says, and so may leave
                # out the checksum.
                data = BytesIO(archive.read(name))
                arrays[name.removesuffix(".npy")] = np.load(data, allow_pickle=False)
        return json.loads(arrays.pop(_CONTENT).tobytes()), arrays


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise a StorageError for whatever is wrong with a file, with its reason where it has one."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise StorageError(
            f"{path} is missing, damaged, or of another version. Build the index again."
        ) from error


def require(condition: bool) -> None:
    """Raise a ValueError where a condition does not hold for what a file says."""
    if not condition:
        raise ValueError("the parts of the file do not fit together")


def are_offsets(offsets: Numbers, end: int) -> bool:
    """Return whether numbers rise from 0 to an end, so that they cut an array into parts."""
    is_whole = offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == end
    return bool(is_whole and (offsets[1:] >= offsets[:-1]).all())


def kth_largest(values: Numbers, k: int) -> Any:
    """Return the k-th largest of at least k values.

    Each block of values has a maximum, and the k-th largest maximum is a lower bound. The values
    below it need no sorting.
    """
    blocks = len(values) // _BLOCK_SIZE
    if blocks > k:
        maxima = values[: blocks * _BLOCK_SIZE].reshape(_BLOCK_SIZE, blocks).max(axis=0)
        values = values[~(values < kth_largest(maxima, k))]  # keeps NaN, which counts as largest
    return np.partition(values, -k)[-k]


def matches(ascending: Numbers, values: Numbers) -> tuple[Ints, Ints]:
    """Return where values occur in ascending numbers, and which of the values occur."""
    if not len(ascending):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    places = np.minimum(ascending.searchsorted(values), len(ascending) - 1)
    hits = np.flatnonzero(ascending[places] == values)
    return places[hits], hits
