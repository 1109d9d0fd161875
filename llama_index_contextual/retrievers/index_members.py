"""The nodes that an index of LlamaIndex has now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index_contextual.retrievers.any_store import listed_nodes, stored_nodes
from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from typing_extensions import Self


class IndexMembers:
    """Tells which nodes an index has.

    Args:
        index: An index of LlamaIndex.

    Raises:
        SettingError: It is not an index.
    """

    def __init__(self, index: Any) -> None:
        self._docstore: Any = getattr(index, "docstore", None)
        self._struct = getattr(index, "index_struct", None)
        store = getattr(index, "vector_store", None)
        # Where the store holds the text, the document store is empty or holds whole documents.
        has_nodes = self._docstore is not None and self._docstore.docs
        has_texts = store is not None and (store.stores_text or not has_nodes)
        self._store: Any = store if has_texts else None
        if self._store is None and self._docstore is None:
            raise SettingError(
                f"`index` must be an index of LlamaIndex (got {type(index).__name__}). "
                "Pass nodes= instead."
            )

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, None]:
        # An index cannot be pickled where its store holds a connection; a copy follows nothing.
        return {"_docstore": None, "_struct": None, "_store": None}

    def nodes(self) -> list[BaseNode]:
        """Return all nodes of the index.

        Raises:
            SettingError: Its store cannot list its nodes.
        """
        if self._store is not None:
            return stored_nodes(self._store)
        nodes = self._docstore.docs
        gone = self.gone(list(nodes))
        return [node for node_id, node in nodes.items() if node_id not in gone]

    def gone(self, node_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that the index has no more."""
        ids = set(node_ids)
        if self._docstore is None and self._store is None:
            return set()
        if self._store is not None:
            return ids - {node.node_id for node in listed_nodes(self._store, [*ids])}
        # delete_ref_doc() leaves a node in the document store; a vector index forgets its id.
        known = getattr(self._struct, "nodes_dict", {}).values()
        known = known or getattr(self._struct, "nodes", ())
        if known:
            return ids.difference(known)
        return ids.difference(self._docstore.docs.keys() - self._summaries())

    def _summaries(self) -> set[str]:
        """Return the ids of nodes that a model wrote about other nodes.

        Indexes of document summaries and trees keep them beside the nodes of documents.
        """
        of_documents = getattr(self._struct, "summary_id_to_node_ids", {})
        children_of = getattr(self._struct, "node_id_to_children_ids", {})
        return {*of_documents, *(node_id for node_id, ids in children_of.items() if ids)}
