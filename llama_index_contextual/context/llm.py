"""Contexts from a language model that reads the whole document."""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import uuid4

from llama_index.core.prompts.mixin import PromptMixin

from llama_index_contextual.checks import amount, optional_whole, whole
from llama_index_contextual.context import models
from llama_index_contextual.context.base import BulkContextGenerator, ChunkContext
from llama_index_contextual.context.cache import OBJECT, ContextCache, Reuse, open_store
from llama_index_contextual.context.calls import CircuitBreaker, Patience
from llama_index_contextual.context.capacity import Learned
from llama_index_contextual.context.connection import Connection
from llama_index_contextual.context.estimate import estimate
from llama_index_contextual.context.prompt import CONTEXT_PROMPT, check_prompt
from llama_index_contextual.context.runner import Run
from llama_index_contextual.context.settings import RunSettings
from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices
from llama_index_contextual.errors import SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import DocumentChunks, Progress

_REVISION: Final = 1  # raise it when the same prompt and model would give other contexts
_PROMPT_KEY: Final = "context_prompt"


class LLMContextGenerator(BulkContextGenerator, PromptMixin):
    """One or two sentences per chunk from a language model that is shown the document.

    The document comes first in each prompt and its chunks after it, several to a call, so that a server with a
    prefix cache reads a document once. A context is in the cache when the call that made it returns. Chunks that got
    none are None in the result, with the reason counted in :attr:`last_failures`, and are asked about again by the
    next run: :class:`FallbackContextGenerator` gives them another context meanwhile.

    Args:
        llm: ``"ollama:qwen3:0.6b"``, ``"openai:gpt-4.1-mini"``, ``"openai:MODEL@http://HOST/v1"``, or any LlamaIndex
            LLM. None takes ``Settings.llm`` where that has been set, else qwen3:0.6b on this machine's Ollama.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        reuse: ``"chunk"`` keeps a chunk's context when its document is edited elsewhere, although what it says about
            the rest may then be outdated; ``"document"`` makes it anew.
        prompt: A template with ``{document}`` and after it ``{chunks}``.
        batch_size: Chunks per call.
        num_workers: Calls at a time; by default 1 for a server on this machine, else 4.
        excerpt_chars: Longer chunks are named in the question by their beginning and end only, since the document shows
            them; None repeats them.
        chunk_timeout: Seconds that a call may take per chunk,
        reading_rate: and besides one second for so many tokens of its prompt.
        writing_rate: Tokens a second that the model writes; for estimates alone.
        probe_timeout: Seconds to wait for the server's sign of life before a run.
        max_calls: Requests at most, over all runs, further attempts included (not those that an LLM object's client
            makes by itself); what is left then fails, and a later run goes on with it.
        max_tokens: Tokens at most, likewise.
        max_output_tokens: Tokens per context.
        context_window: Tokens that the model takes; by default what the LLM says. A longer document is shown as
            its outline and what surrounds the chunks.
        attempts: How often a request is sent when the server is busy or fails. An LLM object whose client tries again
            by itself is asked once.
        max_wait: Longest ``Retry-After`` that is waited for, in seconds.
        breaker_threshold: After so many failed requests in a row the server is left alone,
        breaker_cooldown: for so many seconds.
        fallback_only: Use what is in the cache, and never call.
        api_key: For a model given by name; by default the provider's environment variable.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: str | LLM | None = None,
        *,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        reuse: Reuse = "chunk",
        prompt: BasePromptTemplate | None = None,
        batch_size: int = 8,
        num_workers: int | None = None,
        excerpt_chars: int | None = 400,
        chunk_timeout: float = 5.0,
        reading_rate: float = 200.0,
        writing_rate: float = 20.0,
        probe_timeout: float = 2.0,
        max_calls: int | None = None,
        max_tokens: int | None = None,
        max_output_tokens: int = 100,
        context_window: int | None = None,
        attempts: int = 3,
        max_wait: float = 60.0,
        breaker_threshold: int = 3,
        breaker_cooldown: float = 30.0,
        fallback_only: bool = False,
        api_key: str | None = None,
    ) -> None:
        self._connection = Connection(llm, api_key)
        self.reuse, self.batch_size, self.num_workers = reuse, batch_size, num_workers
        self.excerpt_chars, self.max_output_tokens = excerpt_chars, max_output_tokens
        self.chunk_timeout, self.reading_rate, self.writing_rate = chunk_timeout, reading_rate, writing_rate
        self.probe_timeout, self.context_window = probe_timeout, context_window
        self.max_calls, self.max_tokens, self.fallback_only = max_calls, max_tokens, fallback_only
        self.attempts, self.max_wait = attempts, max_wait
        self.breaker_threshold, self.breaker_cooldown = breaker_threshold, breaker_cooldown
        self._prompt = prompt or CONTEXT_PROMPT
        self._check()
        self._store = open_store(cache)
        self._fell_back = ""
        self._reset()

    def _check(self) -> None:
        for name in ("batch_size", "max_output_tokens", "attempts", "breaker_threshold"):
            setattr(self, name, whole(name, getattr(self, name)))
        for name in ("num_workers", "excerpt_chars", "context_window"):
            setattr(self, name, optional_whole(name, getattr(self, name)))
        for name in ("max_calls", "max_tokens"):  # 0 asks for nothing, and uses what is in the cache
            setattr(self, name, optional_whole(name, getattr(self, name), least=0))
        for name in ("chunk_timeout", "reading_rate", "writing_rate", "probe_timeout"):
            amount(name, getattr(self, name))
        for name in ("max_wait", "breaker_cooldown"):  # as long as the server says; never again
            amount(name, getattr(self, name), zero=True, endless=True)
        if self.reuse not in ("chunk", "document"):
            raise SettingError(f"reuse={self.reuse!r} is not known. Cure: 'chunk' or 'document'.")
        check_prompt(self._prompt)

    def _reset(self) -> None:
        self._breaker = CircuitBreaker(self.breaker_threshold, self.breaker_cooldown)
        self._life, self._learned = models.SignOfLife(), Learned()
        self._usage = ContextUsage()
        self.last_failures: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"LLMContextGenerator({self.name!r}, version={self.version!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in _LIVE}
        return {**state, "_connection": copy(self._connection)}  # so that copies do not close each other's loop

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def llm(self) -> LLM:
        """The model, made when it is first needed."""
        return self._connection.llm(self.context_window, self.max_output_tokens * self.batch_size)

    @property
    def name(self) -> str:  # type: ignore[override]
        """``llm:`` and the model's name."""
        given = self._connection.given
        return f"llm:{models.ModelSpec.parse(given).model if isinstance(given, str) else models.model_name(self.llm)}"

    @property
    def version(self) -> str:
        """Hash of model, prompt and length; not of what changes no context, such as timeouts."""
        template = self._prompt.format(document="{document}", chunks="{chunks}", count="{count}")
        return short_hash([self.name, _REVISION, template, self.max_output_tokens])

    @property
    def usage(self) -> ContextUsage:
        """Calls, tokens and chunks since it was made; what the budgets count."""
        return self._usage

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> list[list[ChunkContext | None]]:
        """Do several documents, ``num_workers`` calls at a time."""
        return self._connection.loop.run(self._run(batches, progress))

    async def agenerate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> list[list[ChunkContext | None]]:
        """Do the same without blocking the event loop; when it is cancelled, so are the requests.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        return await self._connection.loop.arun(self._run(batches, progress))

    async def _run(
        self, batches: Sequence[DocumentChunks], progress: Progress | None
    ) -> list[list[ChunkContext | None]]:
        run = Run(self._settings(), self._usage, progress)
        texts = await run(batches)
        self.last_failures, self.cache_error = run.ledger.failed, run.ledger.cache_error
        if run.ledger.failed:
            self._fell_back = uuid4().hex
        name, version = self.name, self.version
        return [
            [None if text is None else ChunkContext(text, name, version=version) for text in found] for found in texts
        ]

    def estimate(self, batches: Sequence[DocumentChunks], prices: Prices | None = None) -> ContextEstimate:
        """Say what a run over these chunks would cost, without asking the model about them."""
        window = self.context_window or models.context_window(self.llm)
        return estimate(self._settings(), batches, window, self.writing_rate, prices)

    def probe(self) -> str | None:
        """Say why the model cannot be used now, or None where it can."""
        return models.probe(self.llm, self.probe_timeout)

    def available(self) -> bool:
        """Whether the model's server shows a sign of life within ``probe_timeout``."""
        return self.probe() is None

    def config(self) -> dict[str, Any]:
        """Give the settings as plain data: names instead of objects, and no key."""
        store: str | bool = f"{OBJECT}{type(self._store).__name__}" if self._store is not None else False
        if isinstance(self._store, SQLiteKVStore):
            store = str(self._store.path)
        kept = {key: value for key, value in vars(self).items() if key in _PLAIN}
        return {"spec": "llm", "llm": self._connection.config(), "cache": store, "fallback": None, **kept}

    def state(self) -> str:
        """Mark of the last run that left chunks without a context; without a cache, of those of this object."""
        return self._fell_back if self._store is None else self._cache().state()

    @property
    def remembers_failures(self) -> bool:
        """Whether :meth:`state` is known to other processes."""
        return self._store is not None

    def close(self) -> None:
        """Close the cache's file and end the thread."""
        self._cache().close()
        self._connection.loop.close()

    def _get_prompts(self) -> PromptDictType:
        return {_PROMPT_KEY: self._prompt}

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if _PROMPT_KEY in prompts:
            check_prompt(prompts[_PROMPT_KEY])
            self._prompt = prompts[_PROMPT_KEY]

    def _cache(self) -> ContextCache:
        return ContextCache(self._store, self.version, self.reuse)

    def _settings(self) -> RunSettings:
        workers = self.num_workers or (1 if models.is_local(self.llm) else 4)
        return RunSettings(
            source=self.name,
            llm=self.llm,
            prompt=self._prompt,
            cache=self._cache(),
            breaker=self._breaker,
            life=self._life,
            learned=self._learned,
            patience=Patience(self.attempts, max_wait=self.max_wait),
            num_workers=workers,
            **{key: getattr(self, key) for key in _RUN},
        )


_RUN: Final = (
    "batch_size", "excerpt_chars", "chunk_timeout", "reading_rate", "probe_timeout", "max_output_tokens",
    "context_window", "max_calls", "max_tokens", "fallback_only",
)  # fmt: skip
_PLAIN: Final = frozenset(
    {*_RUN, "reuse", "num_workers", "writing_rate", "attempts", "max_wait", "breaker_threshold", "breaker_cooldown"}
)
_LIVE: Final = frozenset({"_breaker", "_life", "_learned", "_usage", "last_failures", "cache_error"})
