"""What a context, a document and the costs of contexts are, and what a generator of contexts must do.

Nodes are grouped by the document that they were cut from, with a text of it that is not outdated.
"""

from __future__ import annotations

import asyncio
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from llama_index.core.schema import BaseNode, MetadataMode, TextNode

from llama_index_contextual.utils.metadata import (
    DESCRIPTION,
    PATH,
    TAGS,
    TITLE,
    bounded,
    display_path,
    path_of,
)

if TYPE_CHECKING:
    from llama_index.core.storage.docstore import BaseDocumentStore

Progress: TypeAlias = "Callable[[ContextProgress], None]"
Contexts: TypeAlias = "list[list[ChunkContext | None]]"  # of documents, by chunk
_MAX_GAP: Final = (
    10_000_000  # characters between two slices: a wrong offset must not cost gigabytes
)
_SHARED: Final = (PATH, TITLE, TAGS, DESCRIPTION)  # not the day, which may be that of a section
MAX_CHARS: Final = 600  # of a context from a language model; its prompt asks for two sentences
OUTPUT_TOKENS: Final = 100  # of the same, that the model may write
DEFAULT_WINDOW: Final = 8192  # tokens that a model takes whose server does not say


class ChunkContext(NamedTuple):
    """The context of one chunk."""

    text: str  # what is embedded and keyword-indexed beside the chunk; may be empty
    source: str  # the generator that made it: "headings", "pattern", "llm:<model>+pattern"
    lexical: str = ""  # more words, for the keyword arm alone
    version: str = ""  # the generator's version at that time


class SourceDocument(NamedTuple):
    """A document as its chunks' generator sees it."""

    id: str  # LlamaIndex's id of the document, or the chunk's own where it has no document
    path: str  # what a citation would show; empty where unknown
    text: str  # as far as known
    metadata: Mapping[str, Any] = MappingProxyType({})  # what its chunks share


class DocumentChunks(NamedTuple):
    """Some chunks of one document: the unit that generators work on."""

    document: SourceDocument
    nodes: tuple[BaseNode, ...]


class ContextProgress(NamedTuple):
    """How far a run is, counted in chunks across all documents."""

    done: int  # those of the cache included
    total: int


class Tokens(NamedTuple):
    """Tokens of calls; ``cached`` are those of ``prompt`` that a server had read before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:  # type: ignore[override]
        """The tokens of both."""
        return Tokens(*map(operator.add, self, other))


@dataclass(slots=True)
class ContextUsage:
    """What a generator has done since it was made."""

    generated: int = 0  # contexts that the model gave
    failed: Counter[str] = field(default_factory=Counter)  # chunks without a context, by reason
    calls: int = 0  # repeated ones included
    tokens: Tokens = field(
        default_factory=Tokens
    )  # as the server counted them, or by LlamaIndex's tokenizer


class ContextEstimate(NamedTuple):
    """What a run would cost, if nothing fails."""

    chunks: int  # without a context of this model and prompt
    from_cache: int = 0
    calls: int = 0
    tokens: Tokens = Tokens()  # by LlamaIndex's tokenizer; contexts are of a usual length
    local: bool = False  # whether its server is on this machine


def in_words(counts: Counter[str]) -> str:
    """Counts as text, the largest first: ``3 timeout, 1 empty``."""
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


class ContextGenerator(ABC):
    """Makes the contexts of chunks.

    A subclass has a name, a version and :meth:`generate`. If it works on several documents at once, it overrides
    :meth:`generate_all` and :meth:`agenerate_all`, too. A chunk that it cannot make a context for gets ``None``,
    and the step that writes contexts then raises a ContextError.
    """

    name: str
    """What made a context; stored with it as its provenance."""
    free: ClassVar[bool] = True
    """Whether it costs neither money nor noticeable time, so that it may run while a query waits."""

    version: str
    """A hash of everything that its contexts depend on, apart from the chunk and its document."""
    model_name: str = ""
    """The language model that it asks; empty where it asks none."""
    usage: ContextUsage = ContextUsage()
    """What it has done since it was made; of a free generator nothing."""

    def available(self) -> bool:
        """Whether it can make contexts now, as far as is known."""
        return True

    @abstractmethod
    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> list[ChunkContext | None]:
        """One context per node, in their order; None where there is none."""

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """The contexts of several documents: one list per document, in their order.

        Args:
            batches: The documents with their chunks.
            progress: Called whenever chunks are done.
        """
        results, done, total = [], 0, sum(len(batch.nodes) for batch in batches)
        for batch in batches:
            results.append(self.generate(batch.nodes, batch.document))
            done += len(batch.nodes)
            if progress is not None:
                progress(ContextProgress(done, total))
        return results

    async def agenerate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> Contexts:
        """The contexts of several documents, without blocking the event loop."""
        return await asyncio.to_thread(self.generate_all, batches, progress)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """The cost of a run over these chunks: nothing for a free generator."""
        return ContextEstimate(sum(len(batch.nodes) for batch in batches))

    def at_query_time(self) -> ContextGenerator | None:
        """The generator that may run while a query waits, if there is one."""
        return self if self.free else None

    def config(self) -> dict[str, Any]:
        """The settings for :func:`resolve_generator`: plain data, never a model object or a key."""
        return {"spec": self.name}

    def state(self) -> str:
        """A mark that changes when the same nodes deserve another run, because the last one fell back."""
        return ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close files, connections and threads; it may be used again afterwards."""


def group_by_document(
    nodes: Sequence[BaseNode],
    *,
    documents: Iterable[BaseNode] | None = None,
    docstore: BaseDocumentStore | None = None,
    root: str | None = None,
) -> list[DocumentChunks]:
    """Group nodes by the document they were cut from.

    Args:
        nodes: In any order; those of one document are put in its order where their offsets say it.
        documents: Whole documents, found by id, else by path.
        docstore: Where LlamaIndex keeps documents. A pipeline writes it *after* its transformations, so what it holds
            may be an older text: it is used only where every chunk is found in it.
        root: What absolute paths are shown relative to; see `metadata.display_path`.

    Returns:
        For each document its chunks. Documents appear in the order of their first chunk.
    """
    originals: dict[str, BaseNode] = {}
    for whole in documents or ():
        originals.setdefault(path_of(whole.metadata) or whole.node_id, whole)
        originals[whole.node_id] = whole
    groups: dict[str, list[BaseNode]] = {}
    for node in nodes:
        groups.setdefault(node.ref_doc_id or path_of(node.metadata) or node.node_id, []).append(
            node
        )
    result = []
    for doc_id, unsorted in groups.items():
        chunks = sorted(unsorted, key=start_of)
        if (joined := _joined(chunks)) is None:
            chunks, joined = unsorted, "\n\n".join(dict.fromkeys(map(_content, unsorted)))
        first = chunks[0].metadata
        original = originals.get(doc_id) or originals.get(path_of(first))
        stored = None if docstore is None else docstore.get_document(doc_id, raise_error=False)
        texts = map(_content, filter(None, (original, stored)))
        text = next((text for text in texts if _holds(text, chunks)), joined)
        metadata: dict[str, Any] = {} if original is None else bounded(original.metadata)[0]
        metadata |= {key: first[key] for key in _SHARED if key in first}
        path = display_path(metadata, root) or display_path(first, root)
        result.append(
            DocumentChunks(
                SourceDocument(doc_id, path, text, MappingProxyType(metadata)), tuple(chunks)
            )
        )
    return result


def position(node: BaseNode, document: SourceDocument) -> tuple[int, int]:
    """Start and end of a chunk in its document's text; (0, 0) where it cannot be found."""
    text, start = _content(node), start_of(node)
    if start < 0 or not document.text.startswith(text, start):
        start = document.text.find(text)
    return (start, start + len(text)) if start >= 0 else (0, 0)


def _content(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE)


def start_of(node: BaseNode) -> int:
    """The character of its document at which a node starts; -1 where it does not say."""
    start = node.start_char_idx if isinstance(node, TextNode) else None
    return -1 if start is None else start


def _holds(text: str, chunks: Sequence[BaseNode]) -> bool:
    """Whether a document's text is the one its chunks were cut from; an edited document's is not."""
    places = ((_content(chunk), max(0, start_of(chunk))) for chunk in chunks)
    return all(text.startswith(content, start) or content in text for content, start in places)


def _joined(chunks: Sequence[BaseNode]) -> str | None:
    """The chunks at their offsets again, with empty lines for what none holds, so that offsets stay offsets.

    Returns:
        None where they do not overlap in the same words, as where one parser cut what another had cut: its offsets may
        count from the piece that it cut.
    """
    parts, end, before, earlier = list[str](), 0, 0, ""
    for chunk in chunks:
        start, content = start_of(chunk), _content(chunk)
        shared = earlier[start - before :] if before <= start <= end + _MAX_GAP else None
        if shared is None or shared[: len(content)] != content[: len(shared)]:
            return None
        parts += ["\n" * (start - end), content[max(0, end - start) :]]
        end, before, earlier = max(end, start + len(content)), start, content
    return "".join(parts)
