"""A postprocessor that lets a reranker read contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_index.core.bridge.pydantic import Field, SerializeAsAny
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.utils.errors import (
    Checked,
    ContextualError,
    RetrievalError,
    SettingError,
)


class RerankWithContext(Checked, BaseNodePostprocessor):
    """Lets a reranker read each hit as it was embedded, with its context: ``RerankWithContext(RankGPTRerank(...))``.

    ``RankGPTRerank`` reads the bare text, ``LLMRerank`` and ``StructuredLLMRerank`` the LLM view; neither holds the
    context. They get copies whose text is the EMBED view, in every view. What comes back are the hits themselves, in
    the reranker's order and with its scores.

    Raises:
        RetrievalError: The reranker failed.
    """

    reranker: SerializeAsAny[BaseNodePostprocessor] = Field(
        description="Any reranker of LlamaIndex."
    )
    most: int | None = Field(default=None, gt=0, description="Hits that it reads. The others, and those that it leaves "
                             "out, follow in their order. None: it reads all, and may leave some out.")  # fmt: skip

    def __init__(self, reranker: Any, **settings: Any) -> None:
        if isinstance(
            reranker, dict
        ):  # of to_dict(); stock rerankers hold prompts and models that cannot be read back
            raise SettingError(
                f"`reranker` cannot be read back (got {reranker.get('class_name')!r}). "
                "Pass the object again."
            )
        super().__init__(reranker=reranker, **settings)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with _as_retrieval_error():
            found = self.reranker.postprocess_nodes(self._copies(nodes), query_bundle=query_bundle)
        return self._originals(found, nodes)

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with _as_retrieval_error():
            found = await self.reranker.apostprocess_nodes(
                self._copies(nodes), query_bundle=query_bundle
            )
        return self._originals(found, nodes)

    def _copies(self, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        """Copies of the hits that it reads, whose text is their EMBED view, in every view."""
        copies = []
        for hit in nodes[: self.most]:
            node = hit.node.model_copy(update={"metadata": dict(hit.node.metadata)})
            node.excluded_embed_metadata_keys = node.excluded_llm_metadata_keys = list(
                node.metadata
            )
            node.set_content(hit.node.get_content(metadata_mode=MetadataMode.EMBED))
            copies.append(NodeWithScore(node=node, score=hit.score))
        return copies

    def _originals(
        self, found: Sequence[NodeWithScore], nodes: Sequence[NodeWithScore]
    ) -> list[NodeWithScore]:
        """The hits of which a reranker had copies, with what it added to their metadata; its own nodes stay."""
        by_id, ranked = {hit.node.node_id: hit.node for hit in nodes}, list[NodeWithScore]()
        for hit in found:
            node = by_id.get(hit.node.node_id, hit.node)
            if node is not hit.node and hit.node.metadata != node.metadata:
                node = node.model_copy(update={"metadata": hit.node.metadata})
            ranked.append(NodeWithScore(node=node, score=hit.score))
        ids = {hit.node.node_id for hit in ranked}
        rest = nodes if self.most is not None else ()
        return [
            *ranked,
            *(
                NodeWithScore(node=hit.node, score=0.0)
                for hit in rest
                if hit.node.node_id not in ids
            ),
        ]


@contextmanager
def _as_retrieval_error() -> Iterator[None]:
    """Raise a RetrievalError for what a reranker raises."""
    try:
        yield
    except ContextualError:
        raise
    except Exception as error:
        cure = "Cure: see that its model answers in time, or choose another reranker"
        raise RetrievalError(
            f"the reranker failed ({type(error).__name__}: {error}). {cure}"
        ) from error
