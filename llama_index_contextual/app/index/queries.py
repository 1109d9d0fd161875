"""How an index is asked: for its documents, by a retriever, by engines that answer."""

from __future__ import annotations

import warnings
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from llama_index_contextual.app.folder.formats import LEFT_OUT
from llama_index_contextual.app.store.nodes import to_node
from llama_index_contextual.errors import (
    ContextualWarning,
    DocumentError,
    FingerprintError,
    amount,
    one_of,
    refuse_unknown,
    whole,
)
from llama_index_contextual.metadata import PAGE_LABEL, PATH, split_page
from llama_index_contextual.retrieval import (
    POOL,
    CollectionWeights,
    ContextualFusionRetriever,
    GroupingPostprocessor,
    RecencyPostprocessor,
    default_min_score,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.chat_engine.types import BaseChatEngine
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.app.folder.walk import Discovery
    from llama_index_contextual.app.index.query import IndexView
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.index.writer import Storage
    from llama_index_contextual.app.settings.schema import Configuration
    from llama_index_contextual.app.store.schema import DocumentRow
    from llama_index_contextual.retrieval import Explanation

_PARAMETERS: Final = {*signature(ContextualFusionRetriever.__init__).parameters} - {"self", "retrievers"}
_OPTIONS: Final = _PARAMETERS | {"filters", "recency", "rerank"}  # of :meth:`IndexQueries.as_retriever`


class IndexQueries:
    """The questions of :class:`~llama_index_contextual.app.ContextualIndex`, which has the rest."""

    settings: IndexSettings
    _storage: Storage

    def documents(self) -> dict[str, DocumentRow]:
        """What is indexed, by path or id: hashes, sizes, numbers of nodes."""
        return {key: one for key, one in self._storage.documents().items() if one.is_indexed}

    def failed(self) -> dict[str, str]:
        """Why files could not be indexed when a refresh met them last, by path."""
        return {key: one.failed for key, one in self._storage.documents().items() if one.failed}

    def files(self, below: str = "") -> list[str]:
        """List the paths of the files that the index reads: POSIX, relative to the folder, in order.

        Args:
            below: Only this file, or the files of this sub-folder.
        """
        return [file.path for file in self._found(below).files]

    def skipped(self) -> list[str]:
        """List the paths of files that no pattern names, and that no ignore file leaves out: they are not read."""
        return self._found().skipped

    def not_notes(self) -> list[str]:
        """List the paths of files that are left out as templates or drawings of an Obsidian vault."""
        return self._found().not_notes

    def unread(self) -> tuple[list[str], list[str]]:
        """List what :meth:`skipped` and :meth:`not_notes` list, by one walk through the folder."""
        discovery = self._found()
        return discovery.skipped, discovery.not_notes

    def left_out(self) -> dict[str, str]:
        """What the text of an indexed file lacks, by the file's path: ``"2 pictures; 1 script"``."""
        lacking = zip(self.values(PATH), self.values(LEFT_OUT), strict=True) if self.documents() else ()
        return {str(path): str(parts) for path, parts in lacking if path and parts}

    def read(self, path: str) -> str | None:
        """Return the text of one file of the folder; None where there is none that the index would read.

        Hidden files, files that ``.gitignore`` names, and links out of the folder count as none.

        Args:
            path: Relative to the folder, in POSIX form. ``report.pdf#page=12`` is that page alone.
        """
        file, page = (path, "") if path in self.files(path) else split_page(path)
        if file not in self.files(file):
            return None
        try:
            documents = self.settings.reading.load(file)
        except DocumentError:  # it went this moment, or is no text
            return None
        if page:
            documents = [one for one in documents if str(one.metadata.get(PAGE_LABEL)) == page]
        return "\n\n".join(document.text for document in documents) if documents else None

    def nodes(self, document: str | None = None) -> list[BaseNode]:
        """Every node of the index, as new objects without vectors, in the order in which they were written.

        Args:
            document: Only those of this path or id.
        """

        def read(view: IndexView) -> list[BaseNode]:
            rows = view.snapshot.nodes() if document is None else view.snapshot.nodes_of([document]).get(document, ())
            return [to_node(row) for row in rows]

        return self._storage.reader.ask(read)

    def values(self, key: str) -> list[Any]:
        """The value of a metadata key of every node; None where one has none."""
        return self._storage.reader.ask(lambda view: view.snapshot.column(key))

    def as_retriever(
        self,
        similarity_top_k: int | None = None,
        *,
        filters: MetadataFilters | None = None,
        recency: bool | float | None = None,
        rerank: str | BaseNodePostprocessor | Literal[False] | None = None,
        **options: Any,
    ) -> ContextualFusionRetriever:
        """A retriever that fuses vectors and BM25 over the newest state of the index, whoever wrote it.

        An index without an embedding has the keyword arm alone.

        Args:
            similarity_top_k: How many chunks to return. Default: what the configuration says, else 10.
            filters: LlamaIndex metadata filters, e.g. on ``path`` or ``date_ts``.
            recency: Whether newer notes win among near equals; a number is the half-life in days. Default: what the
                configuration says, else False.
            rerank: What ranks the hits of the arms again, by context and text: ``"cohere:MODEL"``, ``"jina:MODEL"``,
                ``"llama.cpp:http://HOST"``, ``"fastembed:MODEL"``, ``"sentence-transformers:MODEL"``, ``"llm"``,
                ``"ollama:MODEL"``, ``"openai:MODEL"``, or any LlamaIndex postprocessor. False is none. Default: what
                the configuration says, else none.
            **options: More settings of :class:`ContextualFusionRetriever`. ``mode``, ``retriever_weights`` or ``rrf_k``
                come before the fusion of the configuration. ``node_postprocessors`` replace those of the configuration,
                of ``recency`` and of ``rerank``.

        Raises:
            SettingError: A setting is wrong, or a reranker has no key.
            MissingExtraError: The package that runs a reranker is not installed.
        """
        refuse_unknown("as_retriever", options, _OPTIONS)
        if self._storage.replaces():
            raise FingerprintError("the index is still another embedding model's. Cure: refresh() first.")
        defaults = self.settings.configuration
        if similarity_top_k is None:
            similarity_top_k = defaults["retrieval.top_k"] or 10
        similarity_top_k = whole("similarity_top_k", similarity_top_k)
        arms = self._storage.reader.arms(filters)
        options.setdefault("candidate_pool", max(POOL, similarity_top_k))  # who asks for 200 hits need not know of it
        options.setdefault("min_score", defaults["retrieval.min_score"] or 0.0)
        if "node_postprocessors" not in options:
            options["node_postprocessors"] = chosen_postprocessors(
                defaults,
                recency,
                rerank,
                pool=options["candidate_pool"],
                llm=defaults["context_options.llm"],
            )
            weights = {name: one.weight for name, one in self.settings.folders.collections.items() if one.weight != 1}
            if weights:
                options["node_postprocessors"] = [CollectionWeights(weights=weights), *options["node_postprocessors"]]
        return ContextualFusionRetriever(arms, similarity_top_k=similarity_top_k, **options)

    def as_query_engine(
        self, llm: Any = None, *, similarity_top_k: int = 5, citations: bool = False, **options: Any
    ) -> BaseQueryEngine:
        """A query engine that answers from the index.

        Args:
            llm: Answers. Default: LlamaIndex's ``Settings.llm``; with ``citations`` it may also be a name, as for
                :class:`~llama_index_contextual.app.serve.answering.CitedSynthesizer`, which has a default of its own.
            similarity_top_k: Most chunks of a prompt.
            citations: Whether each sentence names its source, ``[1]`` for the first of ``source_nodes``. A number or a
                quotation that is wrong is marked, and where nothing is relevant no model is asked.
            **options: Of :meth:`as_retriever` and of LlamaIndex's ``RetrieverQueryEngine.from_args``.
        """
        from llama_index.core.query_engine import RetrieverQueryEngine

        make = RetrieverQueryEngine.from_args
        if citations:
            from llama_index_contextual.app.serve.answering import CitedSynthesizer

            refuse_unknown("citations=True", {"response_synthesizer"} & options.keys(), ())
            options.setdefault("min_score", default_min_score(self.settings.configuration["retrieval.min_score"]))
            timeout = self.settings.configuration["timeout"]
            writer = CitedSynthesizer(llm, streaming=options.get("streaming", False), timeout=timeout)
            options, llm = {**options, "response_synthesizer": writer}, writer.llm
        retriever, rest = self._retriever_of("as_query_engine", make, similarity_top_k, options)
        return make(retriever, llm=llm, **rest)

    def as_chat_engine(
        self, chat_mode: str = "condense_plus_context", llm: Any = None, *, similarity_top_k: int = 5, **options: Any
    ) -> BaseChatEngine:
        """A chat engine that answers from the index, and also what the index knows nothing of, such as a greeting.

        Args:
            chat_mode: As LlamaIndex names them. ``"condense_plus_context"`` (also ``"best"``) makes a question of the
                conversation, ``"context"`` searches for the message as it is, ``"condense_question"`` asks a query
                engine.
            llm: Answers; default LlamaIndex's ``Settings.llm``.
            similarity_top_k: Most chunks of a prompt.
            **options: Of :meth:`as_retriever` and of the engine's ``from_defaults``: ``memory``, ``chat_history``,
                ``system_prompt``, ``context_prompt`` ...

        Raises:
            SettingError: A setting is wrong, or neither the retriever nor the engine takes it.
        """
        from llama_index.core import chat_engine
        from llama_index.core.query_engine import RetrieverQueryEngine

        engines: dict[str, Any] = {
            "condense_plus_context": chat_engine.CondensePlusContextChatEngine,
            "best": chat_engine.CondensePlusContextChatEngine,
            "context": chat_engine.ContextChatEngine,
            "condense_question": chat_engine.CondenseQuestionChatEngine,
        }
        one_of("chat_mode", chat_mode, tuple(engines))
        make = engines[chat_mode].from_defaults
        retriever, rest = self._retriever_of("as_chat_engine", make, similarity_top_k, options)
        if chat_mode == "condense_question":
            query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
            return cast("BaseChatEngine", make(query_engine=query_engine, llm=llm, **rest))
        return cast("BaseChatEngine", make(retriever=retriever, llm=llm, **rest))

    def _retriever_of(
        self, what: str, make: Callable[..., Any], similarity_top_k: int, options: Mapping[str, Any]
    ) -> tuple[ContextualFusionRetriever, dict[str, Any]]:
        """Return the retriever of an engine, and those options that are the engine's own."""
        engine_names = {*signature(make).parameters} - {"kwargs"}
        refuse_unknown(what, options, (_OPTIONS | engine_names) - {"retriever"})
        retrieving = {key: value for key, value in options.items() if key in _OPTIONS - {"node_postprocessors"}}
        rest = {key: value for key, value in options.items() if key not in retrieving}
        return self.as_retriever(similarity_top_k, **retrieving), rest

    def _found(self, below: str = "") -> Discovery:
        known = [key for key, one in self._storage.documents().items() if one.kind == "file"]
        return self.settings.reading.find(below, known=known)


def explained(index: IndexQueries, question: str, most: int, filters: MetadataFilters | None) -> Explanation:
    """Return the hits of a question as people are shown them: without those that are hardly relevant.

    Raises:
        SettingError: A setting is wrong.
    """
    least = default_min_score(index.settings.configuration["retrieval.min_score"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # the explanation says the same
        return index.as_retriever(most, filters=filters, min_score=least).explain(question)


def chosen_postprocessors(
    configuration: Configuration,
    recency: bool | float | None = None,
    rerank: str | BaseNodePostprocessor | Literal[False] | None = None,
    *,
    pool: int,
    llm: str | LLM | None = None,
) -> list[BaseNodePostprocessor]:
    """Return the postprocessors that some settings ask for, in the order in which they work.

    Args:
        configuration: The settings of the index.
        recency: Whether newer notes win among near equals; a number is the half-life in days. None is what the settings
            say.
        rerank: A reranker by name or any postprocessor. False is none; None is what the settings say.
        pool: How many hits the postprocessors are given. A reranker returns all of them.
        llm: The language model that the reranker ``"llm"`` asks.

    Raises:
        SettingError: A reranker has no such form, no key, or a model that cannot be loaded.
        MissingExtraError: The package that serves it is not installed.
    """
    steps: list[BaseNodePostprocessor] = []
    half_life = configuration["retrieval.recency"] if recency is None else recency
    if half_life is not False:
        days = configuration["retrieval.half_life_days"] if half_life is True else amount("recency", half_life)
        steps.append(RecencyPostprocessor(half_life_days=days))
    model = configuration["retrieval.rerank"] if rerank is None else rerank
    if model:
        from llama_index_contextual.app.settings.llm import (
            resolve_reranker,  # LlamaIndex's prompts, which few need
        )

        steps.append(resolve_reranker(model, pool, llm, configuration["timeout"]))
    if per_file := configuration["retrieval.per_file"]:
        steps.append(GroupingPostprocessor(group_size=per_file))
    return steps
