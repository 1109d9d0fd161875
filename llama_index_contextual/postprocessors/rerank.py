"""A postprocessor that shows a reranker the text that was embedded, context included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.bridge.pydantic import Field, SerializeAsAny
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.postprocessors.hits import checked_hits
from llama_index_contextual.utils.errors import (
    Checked,
    ContextualError,
    RetrievalError,
    SettingError,
)


class RerankWithContext(Checked, BaseNodePostprocessor):
    """Let a reranker read each hit as it was embedded: ``RerankWithContext(RankGPTRerank(...))``.

    ``RankGPTRerank`` reads the bare text. ``LLMRerank`` and ``StructuredLLMRerank`` read the LLM
    view. Neither contains the context. The reranker therefore gets copies whose text is the EMBED
    view in all views. The result is the original hits, with the reranker's order and scores.

    Calls raise a ``RetrievalError`` if the reranker fails.
    """

    reranker: SerializeAsAny[BaseNodePostprocessor] = Field(description="Any LlamaIndex reranker.")

    def __init__(self, reranker: BaseNodePostprocessor, **fields: Any) -> None:
        """Create the postprocessor.

        Args:
            reranker: Any reranker of LlamaIndex.
            **fields: Fields of a subclass.

        Raises:
            SettingError: A setting is unknown or invalid.
        """
        stored: object = reranker
        if isinstance(stored, dict):  # to_dict() cannot store the reranker's prompts and models
            raise SettingError(
                f"`reranker` cannot be read back (got {stored.get('class_name')!r}). Pass the "
                "object again: RerankWithContext.from_dict(data, reranker=…)."
            )
        super().__init__(reranker=reranker, **fields)

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        query_bundle: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        nodes = checked_hits(nodes)
        with _as_retrieval_error():
            ranked = self.reranker.postprocess_nodes(_copies(nodes), query_bundle=query_bundle)
        return _originals(ranked, nodes)

    async def _apostprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        query_bundle: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        nodes = checked_hits(nodes)
        with _as_retrieval_error():
            ranked = await self.reranker.apostprocess_nodes(
                _copies(nodes), query_bundle=query_bundle
            )
        return _originals(ranked, nodes)


def _copies(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Return copies of the hits whose text is the EMBED view of the hit in all views."""
    copies = []
    for hit in nodes:
        node = hit.node.model_copy(update={"metadata": dict(hit.node.metadata)})
        node.excluded_embed_metadata_keys = list(node.metadata)
        node.excluded_llm_metadata_keys = list(node.metadata)
        node.set_content(hit.node.get_content(metadata_mode=MetadataMode.EMBED))
        copies.append(NodeWithScore(node=node, score=hit.score))
    return copies


def _originals(
    ranked: Sequence[NodeWithScore],
    nodes: Sequence[NodeWithScore],
) -> list[NodeWithScore]:
    """Return the original hits in the reranker's order, with the metadata that it added."""
    originals = {hit.node.node_id: hit.node for hit in nodes}
    hits = []
    for hit in ranked:
        node = originals.get(hit.node.node_id, hit.node)
        if hit.node.metadata != node.metadata:
            node = node.model_copy(update={"metadata": hit.node.metadata})
        hits.append(NodeWithScore(node=node, score=hit.score))
    return hits


@contextmanager
def _as_retrieval_error() -> Iterator[None]:
    """Turn any exception of a reranker into a ``RetrievalError``."""
    try:
        yield
    except ContextualError:
        raise
    except Exception as error:
        raise RetrievalError(
            f"The reranker failed ({type(error).__name__}: {error}). Check that its model answers "
            "in time, or choose another reranker."
        ) from error
