"""How many of the nearest chunks are found: a folder's index, graphs of Chroma, Qdrant, LlamaIndex's retriever.

    python benchmarks/exact.py [--sizes 1000 10000 30000] [--real] [--cost 13000 100000] [--qdrant 10000] [--out FILE]

Each system holds the same chunks and vectors, and answers by vectors alone. *Even* vectors are 40 groups of one size.
*Uneven* ones are a crowd around one centre, which is one document, and 60 others apart from it and from one another,
which come first. ``--real`` adds a folder of thirty notes beside one document of 5 MB, with the default model and 43
questions whose answers are in the notes. What is true comes from comparing every vector in float64; chunks that are
equally near count alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import chromadb
import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.node_parser import NodeParser
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, QueryBundle, TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index_contextual.matrix import Matrix
from llama_index_contextual.retrieval.chroma import GRAPH
from qdrant_client import QdrantClient
from uneven import PARAPHRASED, WORDED, write_folder

from llama_index_contextual import ContextualVectorRetriever
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.pipeline import default_parser
from llama_index_contextual.errors import ContextualWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

DIMENSIONS = 384
APART = 60
ASKED = 60  # questions of each kind
SAME = 1e-5  # cosines that differ by less are equal
STOCK = {"space": "cosine"}  # with Chroma's own 16, 100 and 100
GRAPHS = ((16, 100, 100), (32, 200, 200), (64, 400, 400), (64, 400, 2000), (64, 800, 2000))


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
    for name, graph in (("Chroma's own graph", STOCK), ("Chroma, the graph that indexes have", {**STOCK, **GRAPH})):
        client = chromadb.PersistentClient(str(folder.parent / f"chroma {len(graph)}"))
        collection = client.create_collection("bench", embedding_function=None, configuration={"hnsw": graph})
        store = ChromaVectorStore(chroma_collection=collection)
        for start in range(0, len(nodes), 1000):
            store.add(nodes[start : start + 1000])
        if graph is STOCK:
            stock = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
            yield System("LlamaIndex's `VectorIndexRetriever` on Chroma", _retrieved(stock, known))
        ours = ContextualVectorRetriever(store, embed_model=embedding)
        yield System(f"`ContextualVectorRetriever`, {name}", _candidates(ours, known))
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
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", ContextualWarning)
            system.ask(questions[0], 10)
        warned = any(issubclass(one.category, ContextualWarning) for one in said)
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
            "yes" if warned else "",
        ]


HEADER = ["chunks", "questions", "asked", "true first, %", "true ten, %", "CPU, ms", "warns"]


def measure_made(data: Set, qdrant: int) -> Iterator[list[object]]:
    """Yield the rows of one made set."""
    size, together = len(data.vectors), data.name == "uneven"
    settings: dict[str, Any] = {"node_parser": Lines(), "context": "off"}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "folder"
        folder_of(folder, size, together=together)
        made = Made(data.vectors)
        for system in systems(folder, made, lambda node: number_of(node.get_content()), **settings):
            yield from rows_of(system, data)
        if size <= qdrant:
            client = QdrantClient(":memory:")
            options = {"storage": Path(root) / "second", "vector_store": client, "embed_model": made, **settings}
            with ContextualIndex.open(folder, **options) as index:
                index.refresh()
                known = {node.node_id: number_of(node.get_content()) for node in index.nodes()}
                arm = index.as_retriever().retrievers[0]
                yield from rows_of(System("`ContextualIndex`, Qdrant's local client", _candidates(arm, known)), data)


def measure_real() -> Iterator[str]:
    """Yield tables of the folder of notes beside a large document, with the default model."""
    embedding = RememberingEmbedding()
    parser = default_parser(embedding.inner)  # the one that remembers is no ``LocalEmbedding``
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "folder"
        write_folder(folder)
        known: dict[str, int] = {}
        paths: list[str] = []

        def numbers(node: BaseNode) -> int:
            if node.node_id not in known:
                known[node.node_id] = len(known)
                paths.append(str(node.metadata["path"]))
            return known[node.node_id]

        asked = {
            "paraphrased": (list(PARAPHRASED), list(PARAPHRASED.values())),
            "with words of the note": (list(WORDED), list(WORDED.values())),
        }
        vectors: npt.NDArray[np.float32] | None = None
        questions = {
            kind: np.array([embedding.get_query_embedding(text) for text in texts], np.float32)
            for kind, (texts, _) in asked.items()
        }
        rows, answers = [], []
        for system in systems(folder, embedding, numbers, node_parser=parser):
            if vectors is None:
                vectors = _vectors_of(folder, embedding, parser, known)
            rows += rows_of(system, Set("notes beside a document", vectors, questions))
            row: list[object] = [system.name]
            for kind, (texts, golds) in asked.items():
                found = [{paths[one] for one in system.ask(vector, 5)} for vector in questions[kind]]
                right = sum(gold in hits for gold, hits in zip(golds, found, strict=True))
                row.append(f"{right} of {len(texts)}")
            answers.append(row)
        first = sorted(range(len(paths)), key=lambda one: paths[one] == "handbook.md")  # notes are written first
        every = np.concatenate(list(questions.values()))
        graphs = list(graph_rows(cast("Any", vectors), first, every))
    yield markdown_table(HEADER, rows)
    yield markdown_table([", ".join(GRAPH), "true first, %", "true ten, %", "making, s", "question, ms"], graphs)
    yield markdown_table(["the right note among the first five", *asked], answers)


def graph_rows(
    vectors: npt.NDArray[np.float32], order: Sequence[int], questions: npt.NDArray[np.float32]
) -> Iterator[list[object]]:
    """Yield a row for each setting of Chroma's graph: recall, and CPU time of making it and of a question."""
    client = chromadb.EphemeralClient()
    for number, graph in enumerate(GRAPHS):
        settings = dict(zip(GRAPH, graph, strict=True))
        collection = client.create_collection(
            f"graph{number}", embedding_function=None, configuration={"hnsw": {**STOCK, **settings}}
        )
        start = time.process_time()
        for first in range(0, len(order), 256):
            part = list(order[first : first + 256])
            collection.add(ids=[str(one) for one in part], embeddings=vectors[part])
        making = time.process_time() - start

        def ask(vector: Any, top_k: int, collection: Any = collection) -> list[int]:
            found = collection.query(query_embeddings=[vector.tolist()], n_results=top_k, include=[])
            return [int(one) for one in found["ids"][0]]

        [row] = rows_of(System(", ".join(map(str, graph)), ask), Set("", vectors, {"": questions}))
        yield [row[2], row[3], row[4], f"{making:.1f}", row[5]]
        client.delete_collection(collection.name)


def cost_rows(sizes: Sequence[int]) -> Iterator[list[object]]:
    """Yield a row for each size of a matrix: CPU milliseconds of a question, of loading and of saving.

    Questions are vectors that are there. The less vectors differ from one another, the more are compared in full.
    """
    for size in sizes:
        made = np.random.default_rng(0).standard_normal((size, DIMENSIONS), dtype=np.float32)
        centre = np.random.default_rng(1).standard_normal(DIMENSIONS, dtype=np.float32)
        for kind, vectors in {"random": made, "alike": made + 2 * centre, "one heap": made + 6 * centre}.items():
            with tempfile.TemporaryDirectory() as folder:
                matrix = Matrix().with_rows(np.arange(1, size + 1), vectors)
                kept, saved = timed(lambda: matrix.save(Path(folder), "one"))  # noqa: B023  called at once
                loaded, (read, _) = timed(lambda: Matrix.load(Path(folder)))
                asked = [timed(lambda: read.nearest(one, 100))[0] for one in vectors[:30]]  # noqa: B023
                edited = saved.with_rows(np.arange(size + 1, size + 11), vectors[:10])
                edit, _ = timed(lambda: edited.save(Path(folder), "two"))  # noqa: B023
            yield [f"{size:,} {kind}", float(np.median(asked)), loaded, kept, edit]


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU milliseconds of an action, and what it returned."""
    start = time.process_time()
    result = action()
    return (time.process_time() - start) * 1000, result


def _vectors_of(
    folder: Path, embedding: BaseEmbedding, parser: NodeParser, known: dict[str, int]
) -> npt.NDArray[np.float32]:
    with ContextualIndex.open(folder, embed_model=embedding, node_parser=parser) as index:
        nodes = sorted(index.nodes(), key=lambda node: known[node.node_id])
    texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
    return np.array(embedding.get_text_embedding_batch(texts), np.float32)


def main() -> None:
    """Measure what was asked for and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000, 30_000])
    parser.add_argument(
        "--qdrant", type=int, default=10_000, help="largest size for Qdrant's local mode, which is slow"
    )
    parser.add_argument(
        "--real", action="store_true", help="also notes beside a large document, with the default model"
    )
    parser.add_argument("--cost", type=int, nargs="*", default=[], help="sizes of a matrix whose cost is measured")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    parts = [f"# Exact\n\n`benchmarks/exact.py`, {machine()}"]
    print(parts[0], flush=True)
    for size in options.sizes:
        for make in (even, uneven):
            parts.append(markdown_table(HEADER, measure_made(make(size), options.qdrant)))
            print(parts[-1], flush=True)
    if options.cost:
        header = ["vectors", "question, ms", "load, ms", "save all, ms", "save after an edit of 10, ms"]
        parts.append(markdown_table(header, cost_rows(options.cost)))
        print(parts[-1], flush=True)
    for table in measure_real() if options.real else ():
        parts.append(table)
        print(table, flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
