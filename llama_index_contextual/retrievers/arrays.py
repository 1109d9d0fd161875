"""Indexes of rows in immutable arrays, and the files in which they are stored.

An index has at most two parts: a large part, and a small part with the rows that were added since.
A file is always replaced as a whole, so a crash leaves the old or the new file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
Part = tuple[Any, Bools]  # the arrays of some rows, and whether each row is live

_MERGE_FACTOR = 4  # the small part is merged when it has a quarter of the large part's rows
_BLOCK_SIZE = 32  # values of which the largest is compared first
_CONTENT = "content"  # the name of the array with JSON in a file


@dataclass(frozen=True, eq=False)
class RowArrays:
    """The arrays of some rows.

    Attributes:
        ids: The number of each row.
        matrices: The names of the arrays with two dimensions.
    """

    ids: Ints
    matrices: ClassVar[Collection[str]] = ()

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> Self:
        """Merge the live rows of several arrays."""
        columns = {}
        for name in vars(parts[0][0]):
            columns[name] = np.concatenate([vars(arrays)[name][live] for arrays, live in parts])
        return cls(**columns)

    def check(self) -> None:
        """Raise a ValueError if the arrays are inconsistent, so that no row can be wrong."""
        require(all(len(column) == len(self.ids) for column in vars(self).values()))


class ArrayIndex:
    """An immutable index of rows with numbers. A change returns a new index and copies little.

    Args:
        parts: The large part, and the small part if there is one.
    """

    arrays_type: ClassVar[type[RowArrays]]

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = tuple(parts)
        ids = [arrays.ids for arrays, _ in parts]
        self.all_rows: Ints = np.concatenate([np.empty(0, np.int64), *ids])
        """The number of each row, part by part, including deleted rows."""
        self.live: Bools = np.concatenate([np.empty(0, np.bool_), *(live for _, live in parts)])
        """Whether each of these rows is live."""
        live_places = np.flatnonzero(self.live)
        order = np.argsort(self.all_rows[live_places], kind="stable")
        self._places = live_places[order]
        self.rows: Ints = self.all_rows[self._places]
        """The numbers of all live rows, ascending."""

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, rows: Rows) -> tuple[Ints, Ints]:
        """Return the positions of the live rows in :attr:`all_rows`, and in ``rows``."""
        live_positions, positions = find_sorted(self.rows, np.asarray(rows, np.int64))
        return self._places[live_positions], positions

    def by_part(self, places: Ints) -> Iterator[tuple[Any, Ints, Ints]]:
        """Yield each part's arrays, the positions in them, and their positions in ``places``."""
        start = 0
        for arrays, live in self.parts:
            in_part = np.flatnonzero((places >= start) & (places < start + len(live)))
            yield arrays, places[in_part] - start, in_part
            start += len(live)

    def best(self, scores: Floats, top_k: int, places: Ints) -> ScoredRows:
        """Return the rows with the highest scores, best first. Ties are broken by number.

        All rows that tie with the last row are included, so that the caller can break ties.

        Args:
            scores: The scores of the rows.
            top_k: The number of rows, at least 1.
            places: The position of each row in :attr:`all_rows`.
        """
        if len(scores) > top_k:
            lowest = kth_largest(scores, top_k)
            is_best = scores >= lowest
            places = places[is_best]
            scores = scores[is_best]
        rows = self.all_rows[places]
        order = np.lexsort((rows, -scores))
        return rows[order], scores[order]

    def changed(self, unwanted: Rows = (), *added: RowArrays) -> Self:
        """Return the index without the unwanted rows and with further arrays.

        Unknown rows are ignored. All parts but the first are merged. They are also merged with the
        first part if they are large, or if most of its rows are deleted. Each row is therefore only
        merged a few times, however often rows are added.
        """
        unwanted_places, _ = self.find(unwanted)
        if not added and not len(unwanted_places):
            return self
        parts = [(arrays, live & ~np.isin(arrays.ids, unwanted)) for arrays, live in self.parts]
        parts += map(_all_live, added)
        sizes = [len(live) for _, live in parts]
        live_rows = int(parts[0][1].sum())
        is_mostly_deleted = sizes[0] > 2 * live_rows
        if is_mostly_deleted or _MERGE_FACTOR * sum(sizes[1:]) > live_rows:
            return type(self)(self._merged(parts))
        return type(self)([parts[0], *self._merged(parts[1:])])

    def _merged(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Merge the parts into one without deleted rows."""
        if len(parts) > 1 or not all(live.all() for _, live in parts):
            return [_all_live(self.arrays_type.merge(parts))]
        return parts

    # Files

    def to_arrays(self) -> dict[str, Numbers]:
        """Return the arrays of the live rows by name, or nothing if there are no rows."""
        columns: dict[str, Numbers] = {}
        for arrays, _ in self._merged(self.parts):
            columns |= vars(arrays)
        return columns

    def from_arrays(self, columns: Mapping[str, Numbers]) -> Self:
        """Return the index with the arrays that :meth:`to_arrays` returned.

        Raises:
            ValueError: The arrays are inconsistent.
        """
        if not columns:
            return self
        arrays = self.arrays_type(**columns)
        for name, column in columns.items():
            dimensions = 2 if name in self.arrays_type.matrices else 1
            require(column.ndim == dimensions and column.dtype.kind in "iuf")
        require(arrays.ids.dtype == np.int64)
        arrays.check()
        return self.changed((), arrays)

    def save(self, path: Path, content: Any) -> None:
        """Write the rows to a file, with further content as JSON.

        Raises:
            StorageError: The folder cannot be written.
        """
        write_arrays(path, content, self.to_arrays())

    def load(self, path: Path) -> tuple[Self, Any]:
        """Return the index in a file and its further content.

        Raises:
            StorageError: The file is missing or damaged.
        """
        content, columns = read_arrays(path)
        with explained(path):
            return self.from_arrays(columns), content


def _all_live(arrays: RowArrays) -> Part:
    return arrays, np.ones(len(arrays.ids), np.bool_)


def write_arrays(path: Path, content: Any, arrays: Mapping[str, Numbers]) -> None:
    """Write arrays and JSON to a file in numpy's ``npz`` format, a ZIP archive with checksums.

    The file is not flushed to the disk. If power fails, the checksums reveal the damage.

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

    The file is read and not mapped, because a process crashes if a mapped file is truncated.

    Raises:
        StorageError: The file is missing or damaged.
    """
    arrays = {}
    with explained(path):
        require(path.is_file())  # opening a pipe would wait for its writer
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                    require(not file.read(1))  # The checksum is verified at the end of the member.
                arrays[name.removesuffix(".npy")] = array
        return json.loads(arrays.pop(_CONTENT).tobytes()), arrays


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn any exception while a file is read into a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise StorageError(
            f"{path} is missing, damaged, or from another version. Build the index again."
        ) from error


def require(condition: bool) -> None:
    """Raise a ValueError if a condition on the content of a file is false."""
    if not condition:
        raise ValueError("the parts of the file are inconsistent")


def are_offsets(offsets: Numbers, end: int) -> bool:
    """Return whether numbers ascend from 0 to ``end``, so that they split an array into parts."""
    has_bounds = offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == end
    return bool(has_bounds and (offsets[1:] >= offsets[:-1]).all())


def kth_largest(values: Numbers, k: int) -> Any:
    """Return the k-th largest of at least k values.

    The k-th largest maximum of blocks of values is a lower bound, so values below it need not be
    sorted.
    """
    blocks = len(values) // _BLOCK_SIZE
    if blocks > k:
        maxima = values[: blocks * _BLOCK_SIZE].reshape(_BLOCK_SIZE, blocks).max(axis=0)
        is_small = values < kth_largest(maxima, k)
        values = values[~is_small]  # keeps NaN, which numpy sorts as the largest
    return np.partition(values, -k)[-k]


def find_sorted(ascending: Numbers, values: Numbers) -> tuple[Ints, Ints]:
    """Return the positions in ``ascending`` of the values that it contains, and in ``values``."""
    if not len(ascending):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    places = np.minimum(ascending.searchsorted(values), len(ascending) - 1)
    known = np.flatnonzero(ascending[places] == values)
    return places[known], known
