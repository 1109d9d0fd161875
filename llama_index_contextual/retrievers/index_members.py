"""The current nodes of a LlamaIndex index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from llama_index.core.data_structs.data_structs import (
    IndexDict,
    IndexGraph,
    IndexList,
    KeywordTable,
)
from llama_index.core.data_structs.document_summary import IndexDocumentSummary

from llama_index_contextual.retrievers.any_store import listed_nodes, stored_nodes
from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from typing_extensions import Self


class IndexMembers:
    """The current nodes of an index.

    Args:
        index: A LlamaIndex index.

    Raises:
        SettingError: ``index`` is not an index.
    """

    def __init__(self, index: Any) -> None:
        self._docstore: Any = getattr(index, "docstore", None)
        self._struct = getattr(index, "index_struct", None)
        store = getattr(index, "vector_store", None)
        # If the vector store stores text, the document store is empty or contains whole documents.
        # If the index lists nodes but the document store is empty, it was not loaded.
        documents = None if self._docstore is None else self._docstore.docs
        is_lost = documents is None or (not documents and any(_listed_ids(self._struct) or ()))
        has_texts = store is not None and (store.stores_text or is_lost)
        self._store: Any = store if has_texts else None
        self._newest = _newest_entry(self._struct)
        self._known_ids = set(_listed_ids(self._struct) or ())
        if self._store is None and self._docstore is None:
            raise SettingError(
                f"`index` must be a LlamaIndex index (got {type(index).__name__}). "
                "Pass nodes= instead."
            )

    def __deepcopy__(self, memo: object) -> Self:
        # The copy reads the same index, and remembers by itself which nodes it has returned.
        members = object.__new__(type(self))
        vars(members).update(vars(self))
        return members

    def __getstate__(self) -> dict[str, Any]:
        # An index whose store has an open connection cannot be pickled, so a copy has no index.
        nothing = dict.fromkeys(("_docstore", "_struct", "_store", "_newest"))
        return {**nothing, "_known_ids": set()}

    def nodes(self) -> list[BaseNode]:
        """Return all nodes of the index.

        Raises:
            SettingError: The store cannot list its nodes.
        """
        if self._store is not None:
            return stored_nodes(self._store)
        nodes = self._docstore.docs
        deleted = self.deleted_ids(list(nodes))
        return [node for node_id, node in nodes.items() if node_id not in deleted]

    def inserted_nodes(self) -> list[BaseNode]:
        """Return the nodes that were inserted since the last call.

        A store that contains text has no list of its nodes in memory, so its nodes are not found.
        """
        newest = _newest_entry(self._struct)
        if self._store is not None or newest == self._newest:
            return []
        listed_ids = set(_listed_ids(self._struct) or ())
        inserted_ids = listed_ids - self._known_ids
        nodes: list[BaseNode] = self._docstore.get_nodes(sorted(inserted_ids), raise_error=False)
        # An index writes its list before its document store. Look again for a node in between.
        if len(nodes) == len(inserted_ids):
            self._newest = newest
            self._known_ids = listed_ids
        return nodes

    def deleted_ids(self, node_ids: Sequence[str]) -> set[str]:
        """Return the ids whose nodes were deleted from the index."""
        ids = set(node_ids)
        if self._docstore is None and self._store is None:
            return set()
        if self._store is not None:
            return ids - {node.node_id for node in listed_nodes(self._store, [*ids])}
        # delete_ref_doc() removes an id from the index, but leaves its node in the document store.
        listed = _listed_ids(self._struct)
        if listed is None:
            listed = self._docstore.docs.keys() - _summaries_of(self._struct)
        return ids.difference(listed)


def _listed_ids(struct: object) -> Iterable[str] | None:
    """Return the ids of the nodes that an index lists. None means that it has no list."""
    if isinstance(struct, IndexDict):
        return struct.nodes_dict.values()
    if isinstance(struct, IndexList):
        return struct.nodes
    if isinstance(struct, IndexDocumentSummary):
        return struct.node_id_to_summary_id
    if isinstance(struct, KeywordTable):
        return chain.from_iterable(struct.table.values())
    return None


def _newest_entry(struct: object) -> tuple[int, str] | None:
    """Return the number of nodes in the list of an index, and the last one.

    Every insertion changes them, because lists and dictionaries keep the order of insertion. None
    means that the index has no such list.
    """
    entries: Sequence[str] | dict[str, str]
    if isinstance(struct, IndexDict):
        entries = struct.nodes_dict
    elif isinstance(struct, IndexList):
        entries = struct.nodes
    elif isinstance(struct, IndexDocumentSummary):
        entries = struct.node_id_to_summary_id
    else:
        return None
    return len(entries), next(reversed(entries), "")


def _summaries_of(struct: object) -> set[str]:
    """Return the ids of the summaries in a tree index, which are nodes but not chunks."""
    if not isinstance(struct, IndexGraph):
        return set()
    return {node_id for node_id, children in struct.node_id_to_children_ids.items() if children}
