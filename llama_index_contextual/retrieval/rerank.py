"""Rerankers that read each chunk with its context: services, models on this machine, a language model."""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.bridge.pydantic import Field, PrivateAttr, SerializeAsAny
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.errors import Checked, ContextualError, RetrievalError, SettingError, needs
from llama_index_contextual.service import TIMEOUT, post
from llama_index_contextual.text import counted, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CHOICE: Final = re.compile(r"Doc(?:ument)?\s*:?\s*(\d+)\s*,?\s*Relevance\s*:?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)


class _ScoringReranker(Checked, BaseNodePostprocessor):
    """A reranker that scores texts; it reads each as it was embedded, with its context."""

    @abstractmethod
    def _scores(self, query: str, texts: list[str]) -> list[float]:
        """A score for each text, the higher the better."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise SettingError(f"{self.class_name()} needs the query. Cure: postprocess_nodes(nodes, query_str=…)")
        if not nodes:
            return []
        texts = [replace_surrogates(hit.node.get_content(metadata_mode=MetadataMode.EMBED))[0] for hit in nodes]
        scores = self._scores(replace_surrogates(query_bundle.query_str)[0], texts)
        if len(scores) != len(nodes) or not all(map(math.isfinite, scores)):
            raise RetrievalError(
                f"{self.class_name()} gave {counted(len(scores), 'usable score')} for {counted(len(nodes), 'chunk')}."
            )
        scored = [NodeWithScore(node=hit.node, score=score) for hit, score in zip(nodes, scores, strict=True)]
        return sorted(scored, key=lambda hit: -(hit.score or 0.0))


class ServiceReranker(_ScoringReranker):
    """A server with a ``/rerank`` route as Cohere, Jina and llama.cpp (``--reranking``) have it.

    The key is read from the environment at each question, and is no part of the object.
    """

    base_url: str = Field(description="Address of the server, up to and including /v1 or /v2.")
    model: str = Field(default="", description="The model; a llama.cpp server has only one.")
    key_names: tuple[str, ...] = Field(default=(), description="Environment variables with the key; the first set one.")
    timeout: float = Field(default=TIMEOUT, gt=0, description="Seconds of silence before the server is given up.")

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        body: dict[str, Any] = {"query": query, "documents": texts, "top_n": len(texts)}
        body |= {"model": self.model} if self.model else {}
        key = key_of(self.key_names)
        headers = {"Authorization": f"Bearer {key}"} if key else None
        url = f"{self.base_url.rstrip('/')}/rerank"
        answer = post(url, body, headers, failure=RetrievalError, timeout=self.timeout)
        try:
            scores = {int(result["index"]): float(result["relevance_score"]) for result in answer["results"]}
        except (KeyError, TypeError, ValueError) as error:
            raise RetrievalError(f"{url} answered without scores: {str(answer)[:200]!r}.") from error
        return [scores.get(number, math.nan) for number in range(len(texts))]


class FastEmbedReranker(_ScoringReranker):
    """A cross-encoder on this machine, run by fastembed (ONNX, no PyTorch)."""

    model: str = Field(description="One of fastembed's cross-encoders.")
    _encoder: Any = PrivateAttr()

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model=model)
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime's import would look for its maker's server
        with needs("fastembed", "rerank"):
            from fastembed.rerank.cross_encoder import TextCrossEncoder
        self._encoder = TextCrossEncoder(model_name=model, **options)

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        return [float(score) for score in self._encoder.rerank(query, texts)]


class RerankWithContext(Checked, BaseNodePostprocessor):
    """Lets a reranker read each hit as it was embedded, with its context: ``RerankWithContext(RankGPTRerank(...))``.

    ``RankGPTRerank`` reads the bare text, ``LLMRerank`` and ``StructuredLLMRerank`` the LLM view; neither holds the
    context. They get copies whose text is the EMBED view, in every view. What comes back are the hits themselves, in
    the reranker's order and with its scores.

    Raises:
        RetrievalError: The reranker failed.
    """

    reranker: SerializeAsAny[BaseNodePostprocessor] = Field(description="Any reranker of LlamaIndex.")
    most: int | None = Field(default=None, gt=0, description="Hits that it reads. The others, and those that it leaves "
                             "out, follow in their order. None: it reads all, and may leave some out.")  # fmt: skip

    def __init__(self, reranker: BaseNodePostprocessor, **settings: Any) -> None:
        super().__init__(reranker=reranker, **settings)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        copies = [_readable(hit) for hit in nodes[: self.most]]
        with _explained():
            return self._originals(self.reranker.postprocess_nodes(copies, query_bundle=query_bundle), nodes, copies)

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        copies = [_readable(hit) for hit in nodes[: self.most]]
        with _explained():
            found = await self.reranker.apostprocess_nodes(copies, query_bundle=query_bundle)
            return self._originals(found, nodes, copies)

    def _originals(
        self, found: Sequence[NodeWithScore], nodes: Sequence[NodeWithScore], copies: Sequence[NodeWithScore]
    ) -> list[NodeWithScore]:
        """The hits of which a reranker had copies; a node that it made itself stays as it is."""
        originals = {id(copy.node): hit.node for hit, copy in zip(nodes, copies, strict=False)}
        by_id = {hit.node.node_id: hit.node for hit in nodes}
        ranked = []
        for hit in found:
            node = originals.get(id(hit.node), by_id.get(hit.node.node_id, hit.node))
            if node is not hit.node and hit.node.metadata != node.metadata:
                node = node.model_copy(update={"metadata": hit.node.metadata})
            ranked.append(NodeWithScore(node=node, score=hit.score))
        ids = {hit.node.node_id for hit in ranked}
        left = nodes if self.most is not None else ()
        return [*ranked, *(NodeWithScore(node=hit.node, score=0.0) for hit in left if hit.node.node_id not in ids)]


def _readable(hit: NodeWithScore) -> NodeWithScore:
    """A hit whose text is its EMBED view, and of which no view shows more."""
    text = hit.node.get_content(metadata_mode=MetadataMode.EMBED)
    node = hit.node.model_copy(update={"metadata": dict(hit.node.metadata)})
    node.excluded_embed_metadata_keys = node.excluded_llm_metadata_keys = list(node.metadata)
    node.set_content(text)
    return NodeWithScore(node=node, score=hit.score)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise a RetrievalError for what a reranker raises."""
    try:
        yield
    except ContextualError:
        raise
    except Exception as error:
        cure = "Cure: see that its model answers in time, or choose another reranker"
        raise RetrievalError(f"the reranker failed ({type(error).__name__}: {error}). {cure}") from error


def read_choices(answer: str, count: int) -> tuple[list[int], list[float]]:
    """The documents and relevances of "Doc: 3, Relevance: 7" lines; no document counts twice."""
    relevances: dict[int, float] = {}
    for number, relevance in _CHOICE.findall(answer):
        if 1 <= int(number) <= count:
            relevances.setdefault(int(number), float(relevance))
    return list(relevances), list(relevances.values())


def key_of(names: Sequence[str]) -> str:
    """The first key of some environment variables that is set; empty where none is."""
    return next((key for name in names if (key := os.environ.get(name, ""))), "")
