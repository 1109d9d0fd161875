"""Vectors and contexts that several machines share: what one has paid for, the others do not pay for again.

The file of an index stays what it is, and holds all that the index has paid for. What it lacks is looked up in the
shared store, and what is new is written to both. So a shared store that goes away stops a refresh with a message, and
loses nothing.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore

from llama_index_contextual.errors import (
    ContextualError,
    ContextualWarning,
    MissingExtraError,
    SettingError,
    StorageError,
)
from llama_index_contextual.sqlite_store import SQLiteFile, SQLiteKVStore
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

_REDIS: Final = re.compile(r"(rediss?|unix)://.+")
# Seconds; Redis's client would wait for ever.
_TIMEOUTS: Final[dict[str, Any]] = {"socket_connect_timeout": 5, "socket_timeout": 30}


class SharedStore:
    """A key-value store of LlamaIndex that other machines use, too.

    Args:
        store: The store, or what makes it when it is first needed: who only asks the index needs none.
        name: What messages call it.

    Raises:
        StorageError: From all methods: it does not answer.
    """

    def __init__(self, store: BaseKVStore | Callable[[], BaseKVStore], name: str) -> None:
        self._given, self._name = store, name

    @cached_property
    def _store(self) -> BaseKVStore:
        return self._given if isinstance(self._given, BaseKVStore) else self._given()

    def get_many(self, keys: Iterable[str], collection: str) -> dict[str, dict[str, Any]]:
        """Return those of several values that there are; others may have put there what is no object."""
        values = self._answered(lambda: [(key, self._store.get(key, collection)) for key in keys])
        wrong = sum(value is not None and not isinstance(value, dict) for _, value in values)
        if wrong:
            text = f"{counted(wrong, 'entry')} of the shared cache {self._name} is no object, and is left there."
            warnings.warn(text, ContextualWarning, stacklevel=2)
        return {key: value for key, value in values if isinstance(value, dict)}

    def put_all(self, values: Mapping[str, dict[str, Any]], collection: str) -> None:
        """Write several values."""
        # In one order on all machines: two that write the same rows of a database in two orders wait for each other.
        self._answered(lambda: self._put(sorted(values.items(), key=itemgetter(0)), collection))

    def _put(self, pairs: list[tuple[str, dict[str, Any]]], collection: str) -> None:
        try:
            self._store.put_all(pairs, collection, batch_size=len(pairs))
        except NotImplementedError:  # not every store takes a batch
            for key, value in pairs:
                self._store.put(key, value, collection)

    def _answered(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ContextualError:
            raise
        except Exception as error:  # each store has errors of its own
            # An address that cannot be read is quoted by parts, and one of them may be the password.
            shown = (
                [] if isinstance(error, ValueError) else str(error).splitlines()[:1]
            )  # a database goes on with its query
            why = ": ".join([type(error).__name__, *shown])
            raise StorageError(
                f"the shared cache {self._name} cannot be used ({why}). What was paid for is "
                "kept in the index's own file. Cure: see that it runs, then refresh; or leave shared_cache out."
            ) from error


class SharedKVStore(SQLiteKVStore):
    """A file of which one collection is shared.

    Args:
        file: The file, as for :class:`SQLiteKVStore`.
        shared: What others have, too.
        collection: Which collection that concerns.

    Raises:
        StorageError: The file or the shared store cannot be used.
    """

    def __init__(self, file: str | os.PathLike[str] | SQLiteFile, shared: SharedStore, collection: str) -> None:
        super().__init__(file)
        self._shared, self._collection, self._keeps = shared, collection, True

    @contextmanager
    def only_read(self) -> Iterator[None]:
        """Keep nothing of what others have: an estimate writes nothing."""
        self._keeps = False
        try:
            yield
        finally:
            self._keeps = True

    def put_all(
        self,
        kv_pairs: Iterable[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> None:
        """Write several values to the file, then to the shared store."""
        pairs = list(kv_pairs)
        super().put_all(pairs, collection, batch_size)
        if collection == self._collection and pairs:
            self._shared.put_all(dict(pairs), collection)

    def get_many(self, keys: Iterable[str], collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return those of several values that there are; what only others have is kept in the file, too."""
        wanted = list(keys)
        found = super().get_many(wanted, collection)
        missing = [key for key in wanted if key not in found]
        others = self._shared.get_many(missing, collection) if collection == self._collection and missing else {}
        if others and self._keeps:
            super().put_all(others.items(), collection)
        return found | others


def resolve_shared(given: str | BaseKVStore | None) -> SharedStore | None:
    """Return the shared store that a setting names: ``"redis://HOST:PORT"``, or any store of LlamaIndex.

    Raises:
        SettingError: It names none.
    """
    if given is None:
        return None
    if isinstance(given, BaseKVStore):
        return SharedStore(given, type(given).__name__)
    shown = _without_password(given) if isinstance(given, str) else type(given).__name__
    if not isinstance(given, str) or not _REDIS.fullmatch(given):
        raise SettingError(
            f"shared_cache={shown!r} is no cache. Cure: 'redis://HOST:PORT', or a BaseKVStore of LlamaIndex."
        )
    return SharedStore(partial(_redis, given), shown)


def _without_password(address: str) -> str:
    scheme, slashes, rest = address.partition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def _redis(address: str) -> BaseKVStore:
    try:
        from llama_index.storage.kvstore.redis import RedisKVStore
    except ImportError as error:
        raise MissingExtraError("llama-index-storage-kvstore-redis", "redis") from error
    return RedisKVStore(address, **_TIMEOUTS)
