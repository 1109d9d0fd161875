"""Contexts from a language model that reads the whole document, and the cache of what it gave."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from llama_index.core import Settings
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.kvstore.types import BaseKVStore
from llama_index.core.utils import get_cache_dir

from llama_index_contextual.context import models, prompts
from llama_index_contextual.context.base import (
    MAX_CHARS,
    ChunkContext,
    ContextEstimate,
    ContextGenerator,
    ContextUsage,
    DocumentChunks,
)
from llama_index_contextual.context.free import FREE
from llama_index_contextual.context.run import Kept, Run
from llama_index_contextual.errors import SettingError, one_of, refuse_unknown
from llama_index_contextual.metadata import HEADER_PATH, value_of
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import replace_surrogates, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import Contexts, Progress, SourceDocument

_REVISION: Final = 1  # raise it when the same prompt and model would give other contexts
_CONTEXTS: Final = "contexts"
_FILE: Final = "contexts.sqlite3"


class LLMContextGenerator(ContextGenerator):
    """One or two sentences per chunk from a language model that is shown the document.

    The document comes first in each prompt and its chunks after it, several to a call, so that a server with a prefix
    cache reads a document once. A sentence is stored as soon as its call returns. A chunk that got none is None in the
    result, or has the context of ``fallback`` meanwhile; the next run asks about it again, at most three times. Each
    context says who made it. One :class:`ContextualWarning` at the end of a run says how many chunks fell back, and
    why.

    Args:
        llm: Any LlamaIndex LLM, or what makes one when it is first needed. None takes ``Settings.llm``, where that has
            been set.
        prompt: A text or template with ``{document}`` and after it ``{chunks}``; ``{count}``, ``{path}``, ``{title}``
            and ``{date}`` can be in it. By default there is one for prose and one for source code.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        beside: Which free context stands before the model's sentence: ``"pattern"`` (of source code file, class and
            names, of other documents the breadcrumb), ``"headings"``, or None for the sentence alone.
        fallback: Which free context stands in where the model gives none: ``"pattern"``, ``"headings"``, or None.
        **options: Settings of the calls, as :class:`LLMOptions` names them.

    Raises:
        SettingError: A setting cannot work.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: models.ModelSource = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        beside: str | None = "pattern",
        fallback: str | None = None,
        **options: Any,
    ) -> None:
        source: object = llm
        if not (source is None or isinstance(source, LLM) or callable(source)):
            cure = "an object of LlamaIndex, such as llm=Ollama(model='qwen3:0.6b')"
            again = "; plain data holds no object" if str(llm).startswith(models.OBJECT) else ""
            raise SettingError(f"is no LLM. Cure: {cure}{again}", llm=llm)
        for name, value in (("beside", beside), ("fallback", fallback)):
            one_of(name, value, (*FREE, None))
        taken = {*signature(LLMContextGenerator).parameters, *models.LLMOptions.__dataclass_fields__}
        refuse_unknown("context='llm'", options, taken - {"options"})
        self.source, self.options = llm, models.LLMOptions(**options)
        # Now: a field may count what the model does later.
        self._model_name = models.model_name(llm) if isinstance(llm, LLM) else getattr(llm, "model_name", None)
        self._llm: LLM | None = None
        self.beside, self.stand_in = (None if kind is None else FREE[kind]() for kind in (beside, fallback))
        self.prompts = prompts.PROMPTS if prompt is None else (prompts.check_prompt(prompt),)
        self.cache = ContextCache(open_store(cache), self._answer_version)
        self.server, self.usage = models.Server(), ContextUsage()
        self.failed_run = ""  # a mark of the last run that had to fall back

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        source = self.source.model_copy() if isinstance(self.source, LLM) else self.source
        return {**self.__dict__, "source": source, "_llm": None}

    @property
    def llm(self) -> LLM:
        """The model, which is made when it is first needed."""
        if self._llm is None:
            self._llm = models.make_model(self.source)
        return self._llm

    @property
    def model_name(self) -> str:  # type: ignore[override]
        """The model's name, such as ``qwen3:0.6b``; a source that makes its model later may have it before.

        It is empty while no model is named: a pipeline reads it before the run, whose error says so.
        """
        if self._model_name is None and (self.source or Settings._llm):  # noqa: SLF001  as in make_model
            self._model_name = models.model_name(self.llm)
        return self._model_name or ""

    @property
    def name(self) -> str:  # type: ignore[override]
        """``llm:``, the model's name, and the kind that stands beside its sentences: ``llm:qwen3:0.6b+pattern``."""
        return f"llm:{self.model_name}" + (f"+{self.beside.name}" if self.beside else "")

    @property
    def version(self) -> str:  # type: ignore[override]
        """A hash of model, prompts, length and what stands beside; timeouts and such change no context."""
        tokens, beside = self.options.max_output_tokens, self.beside and self.beside.version
        return short_hash([f"llm:{self.model_name}", _REVISION, *self.prompts, tokens, beside])

    def _answer_version(self, document: SourceDocument) -> str:
        """A hash of the question about a document; answers are stored under it."""
        prompt = prompts.prompt_for(document, self.prompts)
        return short_hash([f"llm:{self.model_name}", _REVISION, prompt, self.options.max_output_tokens])

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node of a document."""
        return self.generate_all([DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, ``num_workers`` calls at a time.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        run = Run(self, batches, progress)
        models.run_sync(run.ask())
        return run.contexts()

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, without blocking the event loop; cancelling it cancels the requests."""
        run = await asyncio.to_thread(Run, self, batches, progress)
        await run.ask()
        return await asyncio.to_thread(run.contexts)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """The costs of a run over these chunks, without a question to the model about them."""
        return Run(self, batches, None).estimate()

    def available(self) -> bool:
        """Whether the model's server answers; a question about its models, which costs nothing."""
        return self.server.problem(self.llm, self.options.timeout) is None

    def require_key(self) -> None:
        """Raise a ContextError where no call can succeed, because the key is missing or refused."""
        models.require_key(self.llm, "no context can be made")

    def config(self) -> dict[str, Any]:
        """The settings as plain data: the model's name instead of the model, and no key."""
        llm = None if self.source is None else f"{models.OBJECT}{self.model_name}"
        kinds = {"beside": self.beside and self.beside.name, "fallback": self.stand_in and self.stand_in.name}
        return {"spec": "llm", "llm": llm, **kinds, **asdict(self.options)}

    def at_query_time(self) -> ContextGenerator | None:
        """The fallback: a model would keep a query waiting."""
        return self.stand_in

    def state(self) -> str:
        """A mark of this object's last run that left chunks without a context; a pipeline's cache then asks again."""
        return self.failed_run

    def close(self) -> None:
        """Close the cache's file."""
        self.cache.close()


def open_store(cache: str | os.PathLike[str] | BaseKVStore | bool | None) -> BaseKVStore | None:
    """The store of a setting: a file (SQLite), a store; True or None for a file in LlamaIndex's cache folder."""
    if cache is False or isinstance(cache, BaseKVStore):
        return cache if isinstance(cache, BaseKVStore) else None
    path = Path(get_cache_dir()) / "contextual" / _FILE if cache is None or cache is True else cache
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise SettingError("is no cache. Cure: a file's path, a LlamaIndex BaseKVStore, or False.", cache=cache)
    return SQLiteKVStore(Path(path) / _FILE if Path(path).is_dir() else path)


class ContextCache:
    """The contexts that a model gave, and how often it gave a chunk none.

    A context is found again under its chunk's text, header path, model and prompt, together with either the
    document's path or the document's text. So it survives an edit elsewhere in its document (same path) and a renaming
    (same text), and a chunk that stands word for word in two documents gets a context in each.

    Args:
        store: Where, any LlamaIndex key-value store; None stores nothing.
        version_of: The hash of model and prompt for a document.
    """

    def __init__(self, store: BaseKVStore | None, version_of: Callable[[SourceDocument], str]) -> None:
        self.store, self._version_of = store, version_of

    def find(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[Kept]:
        """The records of chunks. A store may be shared: what is no record there counts as none."""
        if self.store is None:
            return [Kept() for _ in nodes]
        rows = self._keys(nodes, document)
        keys, get_many = [key for row in rows for key in row], getattr(self.store, "get_many", None)
        values = get_many(keys, _CONTEXTS) if get_many else {key: self.store.get(key, _CONTEXTS) for key in keys}
        records = {key: _record(value) for key, value in values.items() if value is not None}
        found = [[records.get(key, Kept()) for key in row] for row in rows]
        return [max(row, key=lambda kept: (kept.text is not None, kept.times)) for row in found]

    def keep(self, records: Sequence[tuple[BaseNode, Kept]], document: SourceDocument) -> None:
        """Store records; they are on disk when this returns."""
        if self.store is not None and records:
            rows = zip(self._keys((node for node, _ in records), document), records, strict=True)
            self.store.put_all([(key, kept._asdict()) for keys, (_, kept) in rows for key in keys], _CONTEXTS)

    def close(self) -> None:
        """Close the store, where it is a file of ours."""
        if isinstance(self.store, SQLiteKVStore):
            self.store.close()

    def _keys(self, nodes: Iterable[BaseNode], document: SourceDocument) -> list[tuple[str, str]]:
        """The two keys of each chunk: with the document's path, and with its text."""
        version, path, rows = self._version_of(document), document.path or document.id, []
        text_hash = short_hash([document.text])
        for node in nodes:
            chunk = node.get_content(metadata_mode=MetadataMode.NONE)
            parts = [chunk, str(value_of(node.metadata, HEADER_PATH) or ""), version]
            rows.append((short_hash([*parts, "path", path]), short_hash([*parts, "text", text_hash])))
        return rows


def _record(value: object) -> Kept:
    """The record in a stored value; an empty one for anything that no model's answer becomes."""
    text, reason, times = map(value.get, Kept._fields) if isinstance(value, dict) else (None, None, None)
    if isinstance(text, str) and text.strip() and len(text) <= MAX_CHARS and len(text.splitlines()) == 1:
        return Kept(replace_surrogates(text)[0])
    return Kept(None, reason, times) if isinstance(reason, str) and isinstance(times, int) else Kept()
