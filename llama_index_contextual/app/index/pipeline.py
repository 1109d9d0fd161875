"""From documents to nodes with contexts, in the settings of one index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.settings.embeddings import embedding_limit
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
from llama_index_contextual.context import resolve_generator
from llama_index_contextual.metadata import (
    CONTEXT_SOURCE,
    CONTEXT_VERSION,
    LEXICAL_CONTEXT,
    context_of,
    has_context,
    put_context,
    value_of,
)
from llama_index_contextual.text import MARKDOWN_SUFFIXES, short_hash
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.store.schema import NodeRow
    from llama_index_contextual.context import ContextGenerator, LLMContextGenerator, Progress
    from llama_index_contextual.retrieval import ContextualNodePostprocessor


# Of an embedding's window, kept free for the context. A context of the Kubernetes pages ("Document: path > title >
# section") is 30 word pieces at the median and 60 at most of them.
CONTEXT_RESERVE: Final = 64
_OF_A_FOLDER: Final = {"markdown_suffixes": MARKDOWN_SUFFIXES, "typed_front_matter": True}
LARGEST: Final = 400  # tokens of a chunk, however many more an embedding reads


def default_parser(embedding: BaseEmbedding, chosen: Mapping[str, Any] | None = None) -> HeadingAwareMarkdownNodeParser:
    """Return the parser whose chunks and their contexts fit what the embedding reads, counted in its own tokens.

    A folder holds other files than Markdown, so their suffixes say which are. The proportions are those of the defaults
    (400 tokens, 80 of overlap, 50 at least), which hold where the embedding's limit is not known. A model that reads
    more does not get larger chunks: smaller ones found more in the same number of characters.

    Args:
        embedding: The embedding of the index.
        chosen: Settings of the parser that come before these.
    """
    known, settings = embedding_limit(embedding), {**_OF_A_FOLDER, **(chosen or {})}
    if known is not None and settings.get("tokenizer", known[0]) == known[0]:
        tokenizer, limit = known
        size = min(max(limit - CONTEXT_RESERVE, limit // 2), LARGEST)
        settings = {"chunk_size": size, "tokenizer": tokenizer, **settings}
    if "chunk_size" in settings:
        size = settings["chunk_size"]
        settings = {"chunk_overlap": size // 5, "min_chunk_size": size // 8, **settings}
    if isinstance(embedding, DocumentEmbedding):  # each chunk sees its neighbours already
        settings = {**settings, "chunk_overlap": (chosen or {}).get("chunk_overlap", 0)}
    return HeadingAwareMarkdownNodeParser(**settings)


@dataclass(frozen=True, slots=True)
class NodePipeline:
    """Parser and contexts; knows neither files nor stores."""

    parser: NodeParser
    contexts: ContextualNodePostprocessor

    @property
    def paid_source(self) -> str | None:
        """The ``context_source`` of contexts that cost something, or None where contexts are free or off."""
        generator = self.contexts.generator
        return None if generator is None or generator.free else generator.name

    @property
    def model(self) -> LLMContextGenerator | None:
        """The generator that asks a language model, where there is one."""
        generator = self.contexts.generator
        if generator is None or generator.free:
            return None
        from llama_index_contextual.context import LLMContextGenerator

        return generator if isinstance(generator, LLMContextGenerator) else None

    def parse(self, documents: Sequence[Document]) -> list[BaseNode]:
        """Return the nodes of some documents, without contexts; all pages of a file together."""
        return self.parser.get_nodes_from_documents(documents)

    def take_over(self, nodes: Sequence[BaseNode], stored: Mapping[str, NodeRow]) -> None:
        """Give nodes the contexts that were paid for, from what the index holds under their ids."""
        for node in nodes:
            known = stored.get(node.node_id)
            if known is not None:
                former = known.metadata
                if has_context(former):
                    about = (value_of(former, key) or "" for key in (CONTEXT_SOURCE, CONTEXT_VERSION, LEXICAL_CONTEXT))
                    put_context(node.metadata, context_of(former), *about)

    def contextualize(
        self, nodes: Sequence[BaseNode], documents: Sequence[Document], progress: Progress | None = None
    ) -> None:
        """Write contexts into the nodes of some documents, all at once: calls for several go to a model together."""
        if nodes:
            with step("context", source=self.contexts.fingerprint, documents=len(documents), chunks=len(nodes)):
                self.contexts(nodes, documents, progress=progress)


def parser_settings(parser: NodeParser) -> dict[str, Any]:
    """A parser's settings as plain values: a callable counts by its name, anything unknown by its class."""
    fields = type(parser).model_fields
    skipped = {"callback_manager", "id_func"}
    shown = {name: _plain(getattr(parser, name)) for name in sorted(fields) if name not in skipped}
    revision = getattr(type(parser), "revision", None)  # ours has one
    return {"class": type(parser).__name__, **shown, **({} if revision is None else {"revision": revision})}


def plain_generator(generator: ContextGenerator) -> dict[str, Any] | None:
    """Arguments of :func:`resolve_generator` that make a free generator again; None where they make another one."""
    try:
        written = generator.config()
        again = resolve_generator(**written)
    except Exception:  # noqa: BLE001  whatever a class of somebody else raises
        return None
    same = again is not None and (again.name, again.version) == (generator.name, generator.version)
    return dict(written) if same and generator.free and is_plain(written) else None


def is_plain(value: object) -> bool:
    """Return whether JSON gives a value back as it was."""
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except (TypeError, ValueError):
        return False


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{name}#{short_hash(name, escaped=False)}" if name.endswith("<lambda>") else name


def nodes_hash(fingerprint: Mapping[str, Any]) -> str:
    """Return the hash of what shapes nodes and their contexts; a document made with another is made again."""
    return short_hash([fingerprint[section] for section in ("parser", "context", "reading")], escaped=False)


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each setting in which two fingerprints differ, in a stable order; {} for ``stored`` differs in nothing."""
    return [
        f"{section}.{key}: {old!r} → {new!r}"
        for section in sorted(now.keys() & stored.keys())  # an earlier version knew fewer sections
        for key in sorted({*stored[section], *now[section]})
        if (old := stored[section].get(key)) != (new := now[section].get(key))
    ]
