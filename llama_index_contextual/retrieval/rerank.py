"""What follows a search: the postprocessors that its settings name, and rerankers by name.

Rerankers are services, models on this machine, or a language model. All of them read context and text;
:class:`RerankWithContext` lets rerankers of LlamaIndex that do not.
"""

from __future__ import annotations

import math
import os
import re
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.bridge.pydantic import Field, PrivateAttr, SerializeAsAny
from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.default_prompts import DEFAULT_CHOICE_SELECT_PROMPT
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.app.settings.onnx import send_no_telemetry
from llama_index_contextual.context import make_llm, require_key
from llama_index_contextual.errors import Checked, ContextualError, MissingExtraError, RetrievalError, SettingError
from llama_index_contextual.service import post
from llama_index_contextual.text import counted, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.prompts.mixin import PromptDictType


FORMS: Final = (
    "'cohere:MODEL', 'jina:MODEL', 'llama.cpp:http://HOST', 'fastembed:MODEL', 'sentence-transformers:MODEL', 'llm', "
    "'ollama:MODEL', 'openai:MODEL', or any LlamaIndex postprocessor"
)
_KEYS: Final = {"cohere": ("CO_API_KEY", "COHERE_API_KEY"), "jina": ("JINA_API_KEY",)}  # the first that is set
_URLS: Final = {"cohere": "https://api.cohere.com/v2", "jina": "https://api.jina.ai/v1"}
_ATTEMPTS: Final = 3  # somebody waits for the answer
_READ_BY_LLM: Final = 30  # hits; ten a call
_ANSWER: Final = 200  # tokens for a line on each of ten; a small model does not end by itself
_SECONDS: Final = 60.0  # for each call
_CHOICE: Final = re.compile(r"Doc(?:ument)?\s*:?\s*(\d+)\s*,?\s*Relevance\s*:?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)


def reranker(spec: str | BaseNodePostprocessor, pool: int, llm: str | LLM | None = None) -> BaseNodePostprocessor:
    """Return a reranker by name, or one that is made already so that it reads contexts.

    Args:
        spec: One of ``FORMS``. ``cohere:`` and ``jina:`` take the address of another server of their kind after ``@``:
            ``"jina:MODEL@http://HOST/v1"``.
        pool: How many hits it is given. It returns all of them.
        llm: The language model of ``"llm"``, as a name or an object. Default: LlamaIndex's ``Settings.llm``.

    Raises:
        SettingError: There is no such form, the key is missing, or the model cannot be loaded.
        MissingExtraError: The package that runs it is not installed.
    """
    if not isinstance(spec, str):
        hides_contexts = isinstance(spec, LLMRerank | StructuredLLMRerank | RankGPTRerank)
        return RerankWithContext(spec) if hides_contexts and not isinstance(spec, LLMReranker) else spec
    kind, _, model = spec.partition(":")
    if kind in _URLS and model:
        name, _, url = model.partition("@")
        if not url and not _key(_KEYS[kind]):
            cure = f"needs a key. Cure: set the environment variable {_KEYS[kind][0]}."
            raise SettingError(cure, rerank=f"{kind}:{name}")
        return ServiceReranker(base_url=url or _URLS[kind], model=name, key_names=_KEYS[kind])
    if kind == "llama.cpp" and model.startswith("http"):
        return ServiceReranker(base_url=f"{model.rstrip('/').removesuffix('/v1')}/v1")
    if kind == "fastembed" and model:
        return FastEmbedReranker(model=model)
    if kind in ("sentence-transformers", "huggingface") and model:
        with _loading(f"sentence-transformers:{model}", "huggingface", "the name of a cross-encoder"):
            from llama_index.core.postprocessor import SentenceTransformerRerank

            return SentenceTransformerRerank(model=model, top_n=pool)
    if spec == "llm" or (kind in ("ollama", "openai") and model):
        return _by_llm(llm if spec == "llm" else spec, pool)
    raise SettingError(f"names no reranker. Cure: {FORMS}", rerank=spec)


class _ScoringReranker(Checked, BaseNodePostprocessor):
    """A reranker that scores texts; it reads each as it was embedded, with its context."""

    @abstractmethod
    def _scores(self, query: str, texts: list[str]) -> list[float]:
        """Return a score for each text, the higher the better."""

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

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        body: dict[str, Any] = {"query": query, "documents": texts, "top_n": len(texts)}
        body |= {"model": self.model} if self.model else {}
        key = _key(self.key_names)
        headers = {"Authorization": f"Bearer {key}"} if key else None
        url = f"{self.base_url.rstrip('/')}/rerank"
        answer = post(url, body, headers, failure=RetrievalError, attempts=_ATTEMPTS)
        scores: dict[int, float] = {}
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
        send_no_telemetry()
        with _loading(f"fastembed:{model}", "rerank", "a model of TextCrossEncoder.list_supported_models()"):
            from fastembed.rerank.cross_encoder import TextCrossEncoder

            self._encoder = TextCrossEncoder(model_name=model, **options)

    def _scores(self, query: str, texts: list[str]) -> list[float]:
        return [float(score) for score in self._encoder.rerank(query, texts)]


class RerankWithContext(Checked, BaseNodePostprocessor):
    """Lets a reranker read each hit as it was embedded, with its context: ``RerankWithContext(RankGPTRerank(...))``.

    ``RankGPTRerank`` reads the bare text, ``LLMRerank`` and ``StructuredLLMRerank`` the LLM view; neither holds the
    context. They get copies whose text is the EMBED view, in every view. What comes back are the hits themselves, in
    the reranker's order, with its scores and with metadata that it has added.
    """

    reranker: SerializeAsAny[BaseNodePostprocessor] = Field(description="Any reranker of LlamaIndex.")

    def __init__(self, reranker: BaseNodePostprocessor, **settings: Any) -> None:
        super().__init__(reranker=reranker, **settings)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        copies = [_readable(hit) for hit in nodes]
        return _themselves(self.reranker.postprocess_nodes(copies, query_bundle=query_bundle), nodes, copies)

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        copies = [_readable(hit) for hit in nodes]
        return _themselves(await self.reranker.apostprocess_nodes(copies, query_bundle=query_bundle), nodes, copies)

    def _get_prompts(self) -> PromptDictType:
        return self.reranker._get_prompts()  # noqa: SLF001  so does LlamaIndex

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self.reranker._update_prompts(prompts)  # noqa: SLF001


def _readable(hit: NodeWithScore) -> NodeWithScore:
    """Return a hit whose text is its EMBED view, and of which no view shows more."""
    text = hit.node.get_content(metadata_mode=MetadataMode.EMBED)
    node = hit.node.model_copy(update={"metadata": dict(hit.node.metadata)})
    node.excluded_embed_metadata_keys = node.excluded_llm_metadata_keys = list(node.metadata)
    node.set_content(text)
    return NodeWithScore(node=node, score=hit.score)


def _themselves(
    results: Sequence[NodeWithScore], nodes: Sequence[NodeWithScore], copies: Sequence[NodeWithScore]
) -> list[NodeWithScore]:
    """Return the hits that a reranker was given copies of; a node that it made itself stays as it is."""
    originals = {id(copy.node): hit.node for hit, copy in zip(nodes, copies, strict=True)}
    by_id = {hit.node.node_id: hit.node for hit in nodes}
    hits = []
    for hit in results:
        node = originals.get(id(hit.node), by_id.get(hit.node.node_id, hit.node))
        if node is not hit.node and hit.node.metadata != node.metadata:
            node = node.model_copy(update={"metadata": hit.node.metadata})
        hits.append(NodeWithScore(node=node, score=hit.score))
    return hits


class LLMReranker(LLMRerank):
    """LlamaIndex's ``LLMRerank``, which reads contexts and loses no hit.

    The first 30 hits are read, ten a call. Those that the model does not name follow in their order, and so do all
    others. ``LLMRerank`` itself hides contexts, drops what is not named, and takes "Doc: 0" for the last document.
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name in what LlamaIndex writes down."""
        return cls.__name__

    def _get_predict_kwargs(self, nodes_batch: list[BaseNode], query_str: str) -> dict[str, Any]:
        texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes_batch)
        documents = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, 1))
        return {"query_str": query_str, "context_str": documents}

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with _said_clearly():
            return self._all(nodes, super()._postprocess_nodes(nodes[:_READ_BY_LLM], query_bundle))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with _said_clearly():
            return self._all(nodes, await super()._apostprocess_nodes(nodes[:_READ_BY_LLM], query_bundle))

    def _all(self, nodes: Sequence[NodeWithScore], ranked: list[NodeWithScore]) -> list[NodeWithScore]:
        ids = {hit.node.node_id for hit in ranked}
        return [*ranked, *(NodeWithScore(node=hit.node, score=0.0) for hit in nodes if hit.node.node_id not in ids)]


@contextmanager
def _said_clearly() -> Iterator[None]:
    try:
        yield
    except ContextualError:
        raise
    except Exception as error:  # any integration's own
        raise RetrievalError(
            f"the language model that reranks failed ({type(error).__name__}: {error}). Cure: see that it answers in "
            f"time (a model given by name has {_SECONDS:.0f} s a call), or choose another reranker"
        ) from error


def _choices(answer: str, count: int) -> tuple[list[int], list[float]]:
    """Read "Doc: 3, Relevance: 7" lines; what names no document, or one for the second time, says nothing."""
    relevances: dict[int, float] = {}
    for number, relevance in _CHOICE.findall(answer):
        if 1 <= int(number) <= count:
            relevances.setdefault(int(number), float(relevance))
    return list(relevances), list(relevances.values())


def _key(names: Sequence[str]) -> str:
    return next((key for name in names if (key := os.environ.get(name, ""))), "")


@contextmanager
def _loading(spec: str, extra: str, what: str) -> Iterator[None]:
    """Say what is missing where a model of this machine cannot be loaded."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(spec.partition(":")[0], extra) from error
    except Exception as error:  # the hub's, the file system's, onnxruntime's own
        raise SettingError(
            f"cannot be loaded ({type(error).__name__}: {error}). Cure: {what}, and a network the first time.",
            rerank=spec,
        ) from error


def _by_llm(llm: str | LLM | None, pool: int) -> LLMReranker:
    if isinstance(llm, str):
        llm = make_llm(llm, max_tokens=_ANSWER, seconds=_SECONDS)
        require_key(llm, "nothing can be reranked")
    if llm is None:
        try:
            llm = Settings.llm
        except (ValueError, ImportError) as error:
            raise SettingError(
                "needs a language model. Cure: name one, as 'ollama:MODEL', or [context_options] llm in "
                "contextual.toml, or set LlamaIndex's Settings.llm.",
                rerank="llm",
            ) from error
    return LLMReranker(
        llm=llm,
        top_n=pool,
        choice_select_prompt=DEFAULT_CHOICE_SELECT_PROMPT,
        choice_batch_size=10,
        parse_choice_select_answer_fn=_choices,
    )
