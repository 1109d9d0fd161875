"""How many of the nearest chunks are found: a folder's index, Chroma's graph, LlamaIndex's retriever.

    python benchmarks/exact.py [--sizes 1000 10000 30000] [--cost 13000 100000]

Each system holds the same chunks and vectors, and answers by vectors alone. *Even* vectors are 40 groups of one size.
*Uneven* ones are a crowd around one centre, which is one document, and 60 others apart from it and from one another,
which come first. What is true comes from comparing every vector in float64; chunks that are equally near count alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import chromadb
import numpy as np
from common import machine, markdown_table
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, QueryBundle, TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import ContextualVectorRetriever
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.store.vectors import VectorIndex
from llama_index_contextual.keyword.array_files import read_parts, write_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

DIMENSIONS = 384
APART = 60
ASKED = 60  # questions of each kind
SAME = 1e-5  # cosines that differ by less are equal
STOCK = {"space": "cosine"}  # with Chroma's own 16, 100 and 100


class Made(BaseEmbedding):
    """Gives line ``item N`` the N-th of some vectors."""

    _vectors: Any = PrivateAttr()

    def __init__(self, vectors: npt.NDArray[np.float32], **kwargs: Any) -> None:
        super().__init__(model_name="made", embed_batch_size=1000, **kwargs)
        self._vectors = vectors

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vectors[number_of(text)].tolist()

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002
        return [1.0] * self._vectors.shape[1]  # questions bring their vectors; this one tells how long they are

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class Lines(NodeParser):
    """Makes each line a chunk."""

    def _parse_nodes(self, nodes: Sequence[BaseNode], *_: Any, **__: Any) -> list[BaseNode]:
        return [
            TextNode(text=line, relationships={NodeRelationship.SOURCE: node.as_related_node_info()})
            for node in nodes
            for line in node.get_content().splitlines()
        ]


def number_of(text: str) -> int:
    """Return N of a text ``item N``."""
    return int(text.rpartition(" ")[2])


class Set(NamedTuple):
    """Hold what is asked of what: vectors of all chunks, and of questions of several kinds."""

    name: str
    vectors: npt.NDArray[np.float32]
    questions: dict[str, npt.NDArray[np.float32]]


class System(NamedTuple):
    """Hold one way to ask: a question's vector and how many, to numbers of chunks."""

    name: str
    ask: Callable[[Any, int], list[int]]


def even(size: int) -> Set:
    """Return vectors in 40 groups."""
    rng = np.random.default_rng(size)
    centres = rng.standard_normal((40, DIMENSIONS))
    vectors = centres[np.arange(size) % 40] + 0.6 * rng.standard_normal((size, DIMENSIONS))
    asked = vectors[rng.permutation(size)[:ASKED]]
    return Set("even", vectors.astype(np.float32), {"of any": away(asked, rng)})


def uneven(size: int) -> Set:
    """Return vectors apart, then those of a crowd."""
    rng = np.random.default_rng(size)
    apart = rng.standard_normal((APART, DIMENSIONS))
    crowd = rng.standard_normal(DIMENSIONS) + 0.3 * rng.standard_normal((size - APART, DIMENSIONS))
    questions = {"apart": away(apart, rng), "of the crowd": away(crowd[rng.permutation(len(crowd))[:ASKED]], rng)}
    return Set("uneven", np.concatenate([apart, crowd]).astype(np.float32), questions)


def away(vectors: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return vectors whose cosine to the given ones is about 0.9."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors + 0.48 * lengths / DIMENSIONS**0.5 * rng.standard_normal(vectors.shape)).astype(np.float32)


def folder_of(folder: Path, size: int, *, together: bool) -> None:
    """Write ``item N`` a line: the first 60 in files of their own, and the rest in one file or in files of 250."""
    folder.mkdir(parents=True)
    first = APART if together else 0
    step = size if together else 250
    parts = [range(one, one + 1) for one in range(first)]
    parts += [range(start, min(start + step, size)) for start in range(first, size, step)]
    for number, part in enumerate(parts):
        (folder / f"{number:06}.md").write_text("".join(f"item {one}\n" for one in part), encoding="utf-8")


def systems(
    folder: Path, embedding: BaseEmbedding, numbers: Callable[[BaseNode], int], **settings: Any
) -> Iterator[System]:
    """Index a folder and fill collections with the same chunks; yield what can be asked, one after the other."""
    with ContextualIndex.open(folder, embed_model=embedding, **settings) as index:
        index.refresh()
        nodes = index.nodes()
        known = {node.node_id: numbers(node) for node in nodes}
        nodes.sort(key=lambda node: known[node.node_id])
        yield System("`ContextualIndex`, the default", _candidates(index.as_retriever().retrievers[0], known))
    vectors = embedding.get_text_embedding_batch([node.get_content(MetadataMode.EMBED) for node in nodes])
    for node, vector in zip(nodes, vectors, strict=True):
        node.embedding = vector
    client = chromadb.PersistentClient(str(folder.parent / "chroma"))
    collection = client.create_collection("bench", embedding_function=None, configuration={"hnsw": STOCK})
    store = ChromaVectorStore(chroma_collection=collection)
    for start in range(0, len(nodes), 1000):
        store.add(nodes[start : start + 1000])
    stock = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    yield System("LlamaIndex's `VectorIndexRetriever` on Chroma", _retrieved(stock, known))
    ours = ContextualVectorRetriever(store, embed_model=embedding)
    yield System("`ContextualVectorRetriever` on Chroma", _candidates(ours, known))
    for node in nodes:
        node.embedding = None


def _candidates(arm: Any, known: dict[str, int]) -> Callable[[Any, int], list[int]]:
    def ask(vector: Any, top_k: int) -> list[int]:
        return [known[one.node_id] for one in arm.candidates(QueryBundle("", embedding=vector.tolist()), top_k)]

    return ask


def _retrieved(index: VectorStoreIndex, known: dict[str, int]) -> Callable[[Any, int], list[int]]:
    def ask(vector: Any, top_k: int) -> list[int]:
        found = index.as_retriever(similarity_top_k=top_k).retrieve(QueryBundle("", embedding=vector.tolist()))
        return [known[one.node.node_id] for one in found]

    return ask


def rows_of(system: System, data: Set) -> Iterator[list[object]]:
    """Yield a row for each kind of question: recall of the true first and of the true ten, and milliseconds."""
    units = data.vectors.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    for kind, questions in data.questions.items():
        first, ten, times = 0, 0, []
        for question in questions:
            start = time.process_time()
            found = system.ask(question, 10)
            times.append((time.process_time() - start) * 1000)
            cosines = units @ (question / np.linalg.norm(question))
            best = -np.partition(-cosines, 10)[:10]
            own = cosines[found]
            first += bool(len(own) and own.max() >= best.max() - SAME)
            ten += int((own >= best.min() - SAME).sum())
        yield [
            f"{len(units):,}",
            f"{data.name}, {kind}",
            system.name,
            100 * first / len(questions),
            100 * ten / (10 * len(questions)),
            f"{np.median(times):.1f}",
        ]


HEADER = ["chunks", "questions", "asked", "true first, %", "true ten, %", "CPU, ms"]


def measure_made(data: Set) -> Iterator[list[object]]:
    """Yield the rows of one made set."""
    size, together = len(data.vectors), data.name == "uneven"
    settings: dict[str, Any] = {"node_parser": Lines(), "context": "off"}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "folder"
        folder_of(folder, size, together=together)
        made = Made(data.vectors)
        for system in systems(folder, made, lambda node: number_of(node.get_content()), **settings):
            yield from rows_of(system, data)


def cost_rows(sizes: Sequence[int]) -> Iterator[list[object]]:
    """Yield a row for each number of vectors: CPU milliseconds of a question, of making, saving and loading them."""
    for size in sizes:
        made = np.random.default_rng(0).standard_normal((size, DIMENSIONS), dtype=np.float32)
        centre = np.random.default_rng(1).standard_normal(DIMENSIONS, dtype=np.float32)
        for kind, vectors in {"random": made, "one heap": made + 6 * centre}.items():
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                making, index = timed(lambda: VectorIndex().with_vectors(np.arange(1, size + 1), vectors))  # noqa: B023
                saving, _ = timed(lambda: write_parts(place, "vectors", index.to_arrays(), 1))  # noqa: B023
                loading, read = timed(lambda: VectorIndex.from_arrays(read_parts(place, "vectors")[0]))  # noqa: B023
                asked = [timed(lambda: read.nearest([one.tolist()], 100))[0] for one in vectors[:30]]  # noqa: B023
            yield [f"{size:,} {kind}", float(np.median(asked)), making, saving, loading]


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU milliseconds of an action, and what it returned."""
    start = time.process_time()
    result = action()
    return (time.process_time() - start) * 1000, result


def main() -> None:
    """Measure what was asked for and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 30_000])
    parser.add_argument("--cost", type=int, nargs="*", default=[], help="numbers of vectors whose cost is measured")
    options = parser.parse_args()
    print(f"`benchmarks/exact.py`, {machine()}\n", flush=True)
    for size in options.sizes:
        for make in (even, uneven):
            print(markdown_table(HEADER, measure_made(make(size))), flush=True)
    if options.cost:
        header = ["vectors", "question, ms", "making, ms", "saving, ms", "loading, ms"]
        print(markdown_table(header, cost_rows(options.cost)), flush=True)


if __name__ == "__main__":
    main()
