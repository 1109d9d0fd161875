"""Contexts from a language model that reads the whole document."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from anyio.from_thread import start_blocking_portal
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context import base, prompts
from llama_index_contextual.context.answers import Run
from llama_index_contextual.context.cache import ContextCache
from llama_index_contextual.context.headings import PatternContextGenerator
from llama_index_contextual.utils.errors import SettingError, one_of, whole
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import (
        Contexts,
        DocumentChunks,
        Progress,
        SourceDocument,
    )


ModelSource: TypeAlias = "LLM | Callable[[], LLM] | None"
_REVISION: Final = 1  # raise it when the same prompt and model would give other contexts


class LLMContextGenerator(base.ContextGenerator):
    """One or two sentences per chunk from a language model that is shown the document, after the pattern context.

    The document comes first in each prompt and its chunks after it, several to a call, so that a server with a prefix
    cache reads a document once. A sentence is stored as soon as its call returns. A chunk that got none has the pattern
    context meanwhile, or is None in the result; the next run asks about it again where the model did not answer. Each
    context says who made it. One :class:`ContextualWarning` at the end of a run says how many chunks fell back, and
    why.

    Args:
        llm: Any LlamaIndex LLM, or what makes one when it is first needed. None takes ``Settings.llm``, where that has
            been set. Its own settings say how long an answer is waited for, and how many tokens it takes: a longer
            document is shown as its outline and what surrounds the chunks.
        prompt: A text or template with ``{document}`` and after it ``{chunks}``; ``{count}``, ``{path}``, ``{title}``
            and ``{date}`` can be in it. By default there is one for prose and one for source code.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        fallback: What stands in where the model gives none: ``"pattern"``, or None.
        batch_size: Chunks per call.
        num_workers: Calls at a time. Default: 1 for a server on this machine, else 4.
        max_calls: Over all runs, further attempts included (not those that an LLM's client makes by itself); the
            remaining chunks then fail, and a later run goes on with them. Each process counts its own.

    Raises:
        SettingError: A setting cannot work.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: ModelSource = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        fallback: str | None = "pattern",
        batch_size: int = 8,
        num_workers: int | None = None,
        max_calls: int | None = None,
    ) -> None:
        source: object = llm
        if not (source is None or isinstance(source, LLM) or callable(source)):
            example = "llm=Ollama(model='qwen3:0.6b')"
            raise SettingError(f"`llm` must be a LlamaIndex LLM, such as {example} (got {llm!r}).")
        one_of("fallback", fallback, ("pattern", None))
        self.source, self.fallback = llm, fallback
        self.batch_size = whole("batch_size", batch_size)
        self.num_workers = None if num_workers is None else whole("num_workers", num_workers)
        self.max_calls = None if max_calls is None else whole("max_calls", max_calls, least=0)
        # Now: a field may count what the model does later.
        self._model_name = (
            model_name(llm) if isinstance(llm, LLM) else getattr(llm, "model_name", None)
        )
        self._llm: LLM | None = None
        self.prompts = prompts.PROMPTS if prompt is None else (prompts.check_prompt(prompt),)
        self.cache = ContextCache(cache, self._answer_version)
        self.usage = base.ContextUsage()
        self.failures, self.paused_until = (
            0,
            0.0,
        )  # calls in a row that failed, and when the next one may be sent
        self.failed_run = ""  # a mark of the last run in which the model did not answer

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        source = self.source.model_copy() if isinstance(self.source, LLM) else self.source
        return {**self.__dict__, "source": source, "_llm": None}

    @property
    def llm(self) -> LLM:
        """The model, which is made when it is first needed, or ``Settings.llm`` where that has been set."""
        if self._llm is None:
            made = (
                self.source
                if self.source is None or isinstance(self.source, LLM)
                else self.source()
            )
            self._llm = made or Settings._llm  # noqa: SLF001  Settings.llm would take OpenAI's paid default
        if self._llm is None:
            raise SettingError(
                "No language model is set. "
                "Pass a LlamaIndex LLM, such as llm=Ollama(model='qwen3:0.6b'), or set Settings.llm."
            )
        return self._llm

    @property
    def model_name(self) -> str:  # type: ignore[override]
        """The model's name, such as ``qwen3:0.6b``; a source that makes its model later may have it before.

        It is empty while no model is named: a pipeline reads it before the run, whose error says so.
        """
        if self._model_name is None and (self.source or Settings._llm):  # noqa: SLF001  as above
            self._model_name = model_name(self.llm)
        return self._model_name or ""

    @property
    def name(self) -> str:  # type: ignore[override]
        """``llm:``, the model's name, and the kind that stands before its sentences: ``llm:qwen3:0.6b+pattern``."""
        return f"llm:{self.model_name}+{PatternContextGenerator.name}"

    @property
    def version(self) -> str:  # type: ignore[override]
        """A hash of model, prompts and what stands before the sentences."""
        return short_hash(
            [f"llm:{self.model_name}", _REVISION, *self.prompts, PatternContextGenerator.version]
        )

    def _answer_version(self, document: SourceDocument) -> str:
        """A hash of the question about a document; answers are stored under it."""
        return short_hash(
            [f"llm:{self.model_name}", _REVISION, prompts.prompt_for(document, self.prompts)]
        )

    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> list[base.ChunkContext | None]:
        """One context per node of a document."""
        return self.generate_all([base.DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """The contexts of several documents, ``num_workers`` calls at a time.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        one = Run(self, batches, progress)
        with (
            start_blocking_portal() as portal
        ):  # a loop of its own: this thread may have one, as in a notebook
            portal.call(one.ask)
        return one.contexts()

    async def agenerate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """The contexts of several documents, without blocking the event loop; once cancelled it sends no request."""
        one = await asyncio.to_thread(Run, self, batches, progress)
        await one.ask()
        return await asyncio.to_thread(one.contexts)

    def estimate(self, batches: Sequence[DocumentChunks]) -> base.ContextEstimate:
        """The costs of a run over these chunks, without a question to the model about them."""
        return Run(self, batches, None).estimate()

    def available(self) -> bool:
        """Whether the model's server has not just failed several times in a row."""
        return time.monotonic() >= self.paused_until

    def config(self) -> dict[str, Any]:
        """The settings as plain data: the model's name instead of the model, and no key."""
        names = ("fallback", "batch_size", "num_workers", "max_calls")
        llm = None if self.source is None else self.model_name
        return {"spec": "llm", "llm": llm, **{name: getattr(self, name) for name in names}}

    def at_query_time(self) -> base.ContextGenerator | None:
        """The fallback: a model would keep a query waiting."""
        return PatternContextGenerator() if self.fallback else None

    def state(self) -> str:
        """A mark of this object's last run in which the model did not answer; a pipeline's cache then asks again."""
        return self.failed_run

    def close(self) -> None:
        """Close the cache's file."""
        self.cache.close()


def model_name(llm: LLM) -> str:
    """The name of a model, without a question to its server; of one without a name its class, and a mark.

    Raises:
        SettingError: It has no name, and holds what is no plain data, so that two such models could not be told apart.
    """
    name = getattr(llm, "model", None)
    with contextlib.suppress(Exception):  # any integration's own error
        name = name or llm.metadata.model_name
    if isinstance(name, str) and name not in ("", "unknown"):
        return name
    state = {**llm.__dict__, **(llm.__pydantic_private__ or {})}
    held = {
        key: value
        for key, value in state.items()
        if key not in LLM.model_fields and "key" not in key
    }
    if not all(
        isinstance(value, str | int | float | list | tuple | dict | None) for value in held.values()
    ):
        why = "has no name, so contexts of two such models could not be told apart"
        hint = "Give it a model_name in its metadata, or a field model."
        raise SettingError(f"`llm` {type(llm).__qualname__!r} {why}. {hint}")
    return f"{llm.class_name()}#{short_hash(held)[:8]}"
