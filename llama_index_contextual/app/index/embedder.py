"""Chunks that fit an embedding, and their vectors: kept ones, else from the model; checked, and on disk at once."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mode
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.database import JOINED, Snapshot
from llama_index_contextual.app.index.rows import NodeRow, row_of
from llama_index_contextual.app.settings.embeddings import (
    NoEmbedding,
    embedding_limit,
)
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.app.settings.models import UNNAMED, model_id
from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import (
    EmbeddingError,
    FingerprintError,
    MissingExtraError,
    SettingError,
)
from llama_index_contextual.utils.metadata import path_of, shortened
from llama_index_contextual.utils.text import MARKDOWN_SUFFIXES, counted, readable
from llama_index_contextual.utils.tokens import without_repeats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.app.index.caches import PaidStore

BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_HOPELESS: Final = (
    8  # so many texts without one usable vector among them: the model is broken, not a text
)
_SAME: Final = 0.99  # cosine of two vectors of one text by one model; machines round differently
LARGEST: Final = 400  # tokens of a chunk, however many more an embedding reads
# Of an embedding's window, kept free for the context. A context of the Kubernetes pages ("Document: path > title >
# section") is 30 word pieces at the median and 60 at most of them.
CONTEXT_RESERVE: Final = 64
LARGEST_OF_CODE: Final = (
    400  # the same of source code, also where an embedding reads less and averages windows
)
_dispatcher: Final = get_dispatcher(__name__)
_OF_A_FOLDER: Final = {"markdown_suffixes": MARKDOWN_SUFFIXES}
_SHOWN: Final = 60  # characters of a text in a message


class FolderParser(HeadingAwareMarkdownNodeParser):
    """A parser with a size of its own for source code: ``code_chunk_size``; 0 is that of all other files."""

    typed_front_matter: ClassVar[bool] = True  # so that rating>=4 compares numbers
    code_chunk_size: int = 0

    def _parse_document(self, document: BaseNode, seen: Any, above: Any) -> Any:
        if not self.code_chunk_size or not is_code(path_of(document.metadata)):
            return super()._parse_document(document, seen, above)
        longer = self.model_copy(update={**_sizes(self.code_chunk_size), "code_chunk_size": 0})
        return longer._parse_document(document, seen, above)  # noqa: SLF001  of the same class


def _sizes(size: int) -> dict[str, int]:
    """The sizes of chunks in the proportions of the parser's defaults: 400 tokens, 80 of overlap, 50 at least."""
    return {"chunk_size": size, "chunk_overlap": size // 5, "min_chunk_size": size // 8}


def default_parser(
    embedding: BaseEmbedding, chosen: Mapping[str, Any] | None = None
) -> HeadingAwareMarkdownNodeParser:
    """The parser whose chunks and their contexts fit what the embedding reads, counted in its own tokens.

    A folder holds other files than Markdown, so their suffixes say which are. The proportions are those of the defaults
    (400 tokens, 80 of overlap, 50 at least), which hold where the embedding's limit is not known. A model that reads
    more does not get larger chunks: smaller ones found more in the same number of characters. Where neither size nor
    overlap is chosen, the local embedding gets them of source code: they hold whole functions more often, and it
    averages the windows of a text. Others would not read the rest.

    Args:
        embedding: The embedding of the index.
        chosen: Settings of the parser that come before these.
    """
    known, settings = embedding_limit(embedding), {**_OF_A_FOLDER, **(chosen or {})}
    if known is not None and settings.get("tokenizer", known[0]) == known[0]:
        tokenizer, limit = known
        if "chunk_size" not in settings:
            size = min(max(limit - CONTEXT_RESERVE, limit // 2), LARGEST)
            is_longer = (
                isinstance(embedding, LocalEmbedding | NoEmbedding)
                and "chunk_overlap" not in settings
            )
            settings |= {"chunk_size": size, "code_chunk_size": LARGEST_OF_CODE * is_longer}
        settings["tokenizer"] = tokenizer
    if "chunk_size" in settings:
        settings = {**_sizes(settings["chunk_size"]), **settings}
    return FolderParser(**settings)


@dataclass(slots=True)
class Chunk:
    """A node on its way into the database; as an object it takes four times as much memory.

    Attributes:
        text: What is embedded of it: its text with its context.
        row: Its row.
    """

    text: str
    row: NodeRow


def chunks_of(nodes: list[BaseNode]) -> list[Chunk]:
    """Return the chunks of a document, and empty the list of its nodes to save memory."""
    chunks = []
    nodes.reverse()
    while nodes:
        node = nodes.pop()
        # Nodes of other parsers may hold encoded bytes.
        text = readable(node.get_content(metadata_mode=MetadataMode.EMBED))
        chunks.append(Chunk(text, row_of(node, text)))
    return chunks


def check_identity(snapshot: Snapshot, paid: PaidStore, embedding: BaseEmbedding) -> None:
    """Refuse an embedding without a name of its own whose vectors are not those of an index.

    The name of an embedding's class is the same for all of its objects, so a text of the index is embedded once more.

    Raises:
        FingerprintError: Its vector is another one than the index has.
    """
    first, model = snapshot.rows()[:1], model_id(embedding)
    if embedding.model_name != UNNAMED or snapshot.state.model != model:
        return
    for node, row in zip(snapshot.nodes(first), snapshot.node_rows(first), strict=True):
        text = readable(node.get_content(metadata_mode=MetadataMode.EMBED))
        now = np.asarray(embed_texts(embedding, [text])[0], np.float32)
        for _, kept in paid.vectors(model, [row.embed_hash]):
            lengths = float(np.linalg.norm(now) * np.linalg.norm(kept))
            if len(now) != len(kept) or float(now @ kept) < _SAME * lengths:
                name = type(embedding).__name__
                raise FingerprintError(
                    f"the vectors of this {name} are not those of the index: {text[:_SHOWN]!r} has another one, and "
                    f"both have the model_name {UNNAMED!r}. Cure: the former embedding; or {name}(model_name='…') with "
                    "a name for each model, and reindex=True."
                )


def without_vector(snapshot: Snapshot, paid: PaidStore, embedding: BaseEmbedding) -> list[str]:
    """The document of each chunk whose vector is lost."""
    if isinstance(embedding, NoEmbedding):
        return []
    chunks = snapshot.fetch(f"SELECT key, embed_hash {JOINED}")
    known = paid.with_vectors(model_id(embedding), {name for _, name in chunks})
    return [key for key, name in chunks if name not in known]


@_dispatcher.span
def embed_missing(
    paid: PaidStore, embedding: BaseEmbedding, chunks: Sequence[Chunk]
) -> tuple[int, dict[str, str]]:
    """Keep the vectors of chunks; those of texts that are kept already are not made again.

    New vectors are kept after every :data:`BATCH_TEXTS` texts, so that an interruption costs no more
    than those that are being made.

    Args:
        paid: Where vectors are kept.
        embedding: Makes those that are not known.
        chunks: The chunks.

    Returns:
        How many texts were sent to the model, and why there is no usable vector of some of them, by their hashes.

    Raises:
        EmbeddingError: The model failed, or gave nothing that can be used.
        StorageError: The file of what was paid cannot be written.
    """
    if isinstance(embedding, NoEmbedding):
        return 0, {}
    model, faults = model_id(embedding), dict[str, str]()
    known = paid.with_vectors(model, {chunk.row.embed_hash for chunk in chunks})
    missing = {chunk.row.embed_hash: chunk for chunk in chunks if chunk.row.embed_hash not in known}
    dimensions = paid.dimensions(model) if missing else 0
    for keys in iter_batch(list(missing), BATCH_TEXTS):
        answers = embed_texts(embedding, [missing[key].text for key in keys])
        dimensions = dimensions or mode(map(len, answers))
        vectors = dict(zip(keys, answers, strict=True))
        problems = {
            key: why for key, one in vectors.items() if (why := vector_problem(one, dimensions))
        }
        if len(problems) == len(keys) >= _HOPELESS:
            raise EmbeddingError(
                f"{embedding.model_name} gave no usable vector for any of {counted(len(keys), 'text')}: "
                f"{next(iter(problems.values()))}. What was finished is kept. Cure: see to the model, then refresh."
            )
        paid.put_vectors(model, {key: one for key, one in vectors.items() if key not in problems})
        faults |= {
            key: f"the vector of its text {missing[key].text[:_SHOWN]!r} cannot be used: {fault}."
            for key, fault in problems.items()
        }
    return len(missing), faults


def vector_problem(vector: Sequence[float], dimensions: int) -> str:
    """Why a vector cannot be used that should have so many dimensions; "" where it can."""
    if len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as it is kept
        square = float(values @ values)
    return (
        "" if 0 < square < np.inf else "all its numbers are 0, or some are too large or no numbers"
    )


def embed_texts(embedding: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """Return vectors of texts, unchecked but for their number.

    Every model reads ruled lines as short as they were counted.

    Raises:
        EmbeddingError: The model failed, or gave another number of vectors.
    """
    embed: Any = embedding.get_text_embedding_batch
    number = counted(len(texts), "text")
    try:
        vectors: list[list[float]] = embed([*map(without_repeats, texts)])
    except (EmbeddingError, MissingExtraError, SettingError):  # its message is clear
        raise
    except Exception as error:
        reason = shortened(" ".join(str(error).split()))  # a server may say anything
        raise EmbeddingError(
            f"{embedding.model_name} could not embed {number} ({type(error).__name__}: {reason}). What was finished "
            "is kept. Cure: see to the model, then refresh."
        ) from error
    if len(vectors) != len(texts):
        vectors_made = counted(len(vectors), "vector")
        raise EmbeddingError(
            f"{embedding.model_name} gave {vectors_made} for {number}. Cure: see to the server"
        )
    return vectors
