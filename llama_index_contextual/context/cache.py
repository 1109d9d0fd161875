"""The cache of paid contexts: by the chunk that they belong to, in any LlamaIndex key-value store."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import uuid4

from llama_index.core.schema import MetadataMode
from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.context.base import MAX_CHARS
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.metadata import HEADER_PATH, value_of
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import counted, replace_surrogates, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

Reuse: TypeAlias = Literal["chunk", "document"]
OBJECT: Final = "object:"  # before the class of an object in plain data
CONTEXTS: Final = "contexts"
_FAILURES: Final = "context_failures"
_STATES: Final = "context_states"
_MOST_FAILURES: Final = 3  # of a chunk, before it is left alone
_FILE: Final = "contexts.sqlite"


def open_store(cache: str | os.PathLike[str] | BaseKVStore | bool | None) -> BaseKVStore | None:
    """The store of a setting: a file (SQLite), a store; True or None for a file in LlamaIndex's cache folder."""
    if cache is False:
        return None
    if isinstance(cache, BaseKVStore):
        return cache
    if cache is None or cache is True:
        return SQLiteKVStore(Path(get_cache_dir()) / "contextual" / _FILE)
    if isinstance(cache, str) and cache.startswith(OBJECT):
        raise SettingError(f"cache={cache!r} was a store, which plain data cannot hold. Cure: pass it again.")
    if isinstance(cache, str | os.PathLike) and os.fspath(cache):
        path = Path(cache)
        return SQLiteKVStore(path / _FILE if path.is_dir() else path)
    raise SettingError(f"cache={cache!r} is no cache. Cure: a file's path, a LlamaIndex BaseKVStore, or False.")


def _usable_text(value: object) -> str | None:
    """The context in a stored value; None for anything that no model's answer becomes."""
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_CHARS or len(text.splitlines()) > 1:
        return None
    return replace_surrogates(text)[0]


class ContextCache:
    """The contexts that a model gave, and how often it gave a chunk none.

    A context is found again under its chunk's text, header path, model and prompt, together with either the
    document's path or the document's text. So it survives an edit elsewhere in its document (same path) and a renaming
    (same text), and a chunk that stands word for word in two documents gets a context in each. After an edit elsewhere
    it may be outdated in what it says about the rest: ``reuse="document"`` does not look under the path.

    Args:
        store: Where; None stores nothing.
        version_of: The hash of model and prompt for a document.
        reuse: ``"chunk"`` or ``"document"``.
    """

    def __init__(self, store: BaseKVStore | None, version_of: Callable[[SourceDocument], str], reuse: Reuse) -> None:
        self.store, self._version_of, self._reuse = store, version_of, reuse
        self._last_failed_run = ""

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[str | None]:
        """The contexts of chunks; None for those that have none.

        A store may be shared: what is no context there counts as none, with a warning.
        """
        rows = self._get(nodes, document, CONTEXTS)
        contexts = [next(filter(None, map(_usable_text, values)), None) for values in rows]
        unusable = sum(context is None and bool(values) for context, values in zip(contexts, rows, strict=True))
        if unusable:
            what = f"{counted(unusable, 'kept context')} of {document.path or document.id} cannot be used"
            warnings.warn(f"{what}: no text of one line. The model is asked again.", ContextualWarning, stacklevel=2)
        return contexts

    def keep(self, contexts: Iterable[tuple[BaseNode, str]], document: SourceDocument) -> None:
        """Store contexts; they are on disk when this returns."""
        self._put([(node, {"text": text}) for node, text in contexts], document, CONTEXTS)

    def gave_up_reasons(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[str | None]:
        """Why chunks are not asked about any more, having failed too often; None for all others."""
        rows = self._get(nodes, document, _FAILURES)
        return [row[0]["reason"] if row and row[0]["times"] >= _MOST_FAILURES else None for row in rows]

    def note_failed(self, reasons: Sequence[tuple[BaseNode, str]], document: SourceDocument) -> None:
        """Count that chunks got no context, although the model could be asked, and why."""
        rows = self._get([node for node, _ in reasons], document, _FAILURES)
        times = [1 + max((value["times"] for value in values), default=0) for values in rows]
        pairs = zip(reasons, times, strict=True)
        self._put([(node, {"reason": reason, "times": count}) for (node, reason), count in pairs], document, _FAILURES)

    def state(self, version: str) -> str:
        """The mark of a version's last run that had to fall back; empty where none had to."""
        if self.store is None:
            return self._last_failed_run
        value = self.store.get(version, _STATES)
        return "" if value is None else str(value["run"])

    def mark_failed(self, version: str) -> None:
        """Note that a run fell back, so that a pipeline's own cache does not take its result for final."""
        self._last_failed_run = uuid4().hex
        if self.store is not None:
            self.store.put(version, {"run": self._last_failed_run}, _STATES)

    def close(self) -> None:
        """Close the store, where it is a file of ours."""
        if isinstance(self.store, SQLiteKVStore):
            self.store.close()

    def _keys(self, nodes: Iterable[BaseNode], document: SourceDocument) -> list[list[str]]:
        """The keys of each chunk, the best first."""
        version, path, rows = self._version_of(document), document.path or document.id, []
        text_hash = short_hash([document.text])
        for node in nodes:
            chunk = node.get_content(metadata_mode=MetadataMode.NONE)
            parts = [chunk, str(value_of(node.metadata, HEADER_PATH) or ""), version]
            by_text = short_hash([*parts, "text", text_hash])
            rows.append([by_text] if self._reuse == "document" else [short_hash([*parts, "path", path]), by_text])
        return rows

    def _get(self, nodes: Sequence[BaseNode], document: SourceDocument, collection: str) -> list[list[dict[str, Any]]]:
        """The values of each chunk, the best first."""
        if self.store is None:
            return [[] for _ in nodes]
        rows = self._keys(nodes, document)
        keys = [key for row in rows for key in row]
        if (get_many := getattr(self.store, "get_many", None)) is not None:
            values = get_many(keys, collection)
        else:
            pairs = ((key, self.store.get(key, collection)) for key in keys)
            values = {key: value for key, value in pairs if value is not None}
        return [[values[key] for key in row if key in values] for row in rows]

    def _put(
        self, values: Sequence[tuple[BaseNode, dict[str, Any]]], document: SourceDocument, collection: str
    ) -> None:
        if self.store is None or not values:
            return
        rows = zip(self._keys((node for node, _ in values), document), values, strict=True)
        self.store.put_all([(key, value) for keys, (_, value) in rows for key in keys], collection)
