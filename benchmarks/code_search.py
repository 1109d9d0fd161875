"""Run semble's benchmark of code search: nDCG@10 by lines, as its authors count, and by files.

    git clone https://github.com/MinishLab/semble ../semble
    python benchmarks/code_search.py --semble ../semble/benchmarks [--checkouts FOLDER]
        [--repositories flask click ...] [--scores FILE]

Labels, the list of repositories and the published figures come from the folder ``--semble``. Source
files come from ``--checkouts``, where each repository is a folder of its name at its pinned commit
(semble's ``sync_repos`` makes them in ``~/.cache/semble-bench``), else from the data set
``code-search``, which has seven of them.

Each repository is an index of its own. A ranking is the first ten chunks. By line, a target counts
at the first chunk of its file that overlaps its lines; a target without lines counts at the first
chunk of its file. By file, all lines are dropped, and a file counts once.

``--scores`` keeps the scores of each query in a JSON file; a repository that it has is not measured
again.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, DataSet
from llama_index.core.schema import Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.utils.metadata import path_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode

Scores: TypeAlias = list[list[float]]  # by query and column

TOP: Final = 10
STOCK: Final = "stock hybrid"
BY_RANKS: Final = "ours by reciprocal ranks"
OURS: Final = "ours"
SYSTEMS: Final = (STOCK, BY_RANKS, OURS)
BY_LINE: Final = "by line"
BY_FILE: Final = "by file"
IGNORED_FOLDERS: Final = frozenset({".git", "node_modules", "dist", "build"})  # as semble does


@dataclass(frozen=True)
class Target:
    """A file that answers a query, or a range of its lines, from 1."""

    path: str
    start_line: int | None = None
    end_line: int | None = None

    @classmethod
    def read(cls, label: str | dict[str, Any]) -> Target:
        """Read a label: a path, or an object with a path and lines."""
        return cls(label) if isinstance(label, str) else cls(**label)

    def is_in(self, node: BaseNode) -> bool:
        """Return whether a chunk is of the file and overlaps the lines."""
        # A label may lack the first folders of a path, or have more of them.
        chunk_path = "/" + path_of(node.metadata)
        target_path = "/" + self.path
        if not (chunk_path.endswith(target_path) or target_path.endswith(chunk_path)):
            return False
        if self.start_line is None or self.end_line is None:
            return True
        first_line: int = node.metadata["start_line"]
        last_line: int = node.metadata["end_line"]
        return first_line <= self.end_line and self.start_line <= last_line


@dataclass(frozen=True)
class Query:
    """A query of the benchmark, its category and what answers it."""

    text: str
    category: str
    targets: tuple[Target, ...]

    @property
    def files(self) -> tuple[Target, ...]:
        """Return the files of the targets, without lines."""
        paths = {target.path: None for target in self.targets}
        return tuple(map(Target, paths))


def gain_of(ranking: Sequence[Hashable], gold: frozenset[Hashable]) -> float:
    """Return nDCG@10 of a ranking in which each item of the gold counts at its first place."""
    first_ranks = [ranking.index(item) for item in gold if item in ranking]
    return ndcg_of_ranks(first_ranks, len(gold))


def ndcg_of_ranks(ranks: Sequence[int], target_count: int) -> float:
    """Return nDCG@10 of the ranks, from 0, at which targets were found, as semble counts it.

    Two targets in one chunk count once.
    """
    ranks_in_top = {rank for rank in ranks if rank < TOP}
    ideal_ranks = range(min(TOP, target_count))
    return gain_at(ranks_in_top) / gain_at(ideal_ranks)


def gain_at(ranks: Iterable[int]) -> float:
    """Return the discounted gain of hits at these ranks, from 0."""
    return sum(1 / math.log2(rank + 2) for rank in ranks)


def score(nodes: Sequence[BaseNode], targets: Sequence[Target]) -> float:
    """Return nDCG@10 of ranked chunks."""
    first_ranks = []
    for target in targets:
        for rank, node in enumerate(nodes):
            if target.is_in(node):
                first_ranks.append(rank)
                break
    return ndcg_of_ranks(first_ranks, len(targets))


def read_queries(file: Path) -> list[Query]:
    """Read the annotations of a repository."""
    queries = []
    rows = json.loads(file.read_text("utf-8"))
    for row in rows:
        labels = row.get("relevant", []) + row.get("secondary", [])
        targets = tuple(map(Target.read, labels))
        query = Query(row["query"], row["category"], targets)
        queries.append(query)
    return queries


def read_documents(folder: Path) -> list[Document]:
    """Read the source files of a repository."""
    documents = []
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        is_ignored = not IGNORED_FOLDERS.isdisjoint(file.parts)
        if is_ignored or not is_code(path) or not file.is_file():
            continue
        document = Document(
            text=file.read_bytes().decode("utf-8", "ignore"),
            id_=path,
            metadata={"path": path},
        )
        documents.append(document)
    return documents


def retrievers(
    documents: list[Document],
    embedding: RememberingEmbedding,
) -> dict[str, BaseRetriever]:
    """Return the systems over the same chunks of a repository."""
    data = DataSet(
        "code-search",
        documents={"": documents},
        questions=[],
        covers=lambda _: frozenset(),
        context="pattern",
    )
    bench = Bench(data, "", embedding)
    index = bench.index("pattern")
    stock_row = Row(STOCK, "off", "off", is_stock=True)
    return {
        STOCK: bench.retriever(stock_row),
        BY_RANKS: index.as_retriever(POOL, mode="reciprocal_rerank"),
        OURS: index.as_retriever(TOP),
    }


def published(folder: Path) -> dict[str, float]:
    """Return semble's own figures by repository."""
    [file] = folder.glob("results/semble-hybrid-*.json")
    rows = json.loads(file.read_text("utf-8"))["repos"]
    return {row["repo"]: row["ndcg10"] for row in rows}


def folder_of(name: str, checkouts: Path | None) -> Path | None:
    """Return where the files of a repository are."""
    parents = [DATA / "code-search" / "corpus"]
    if checkouts:
        parents.insert(0, checkouts)
    for parent in parents:
        folder = parent / name
        if folder.is_dir():
            return folder
    return None


def measure(
    queries: Sequence[Query],
    systems: dict[str, BaseRetriever],
    embedding: RememberingEmbedding,
) -> Scores:
    """Return nDCG@10 of each query: by line for each system, then by file for each system."""
    rows = []
    for query in queries:
        query_vector = embedding.get_query_embedding(query.text)
        bundle = QueryBundle(query.text, embedding=query_vector)
        scores_by_line = []
        scores_by_file = []
        for retriever in systems.values():
            hits = retriever.retrieve(bundle)
            nodes = [hit.node for hit in hits[:TOP]]
            scores_by_line.append(score(nodes, query.targets))
            scores_by_file.append(score(nodes, query.files))
        rows.append(scores_by_line + scores_by_file)
    return rows


class Results:
    """Collects the scores of repositories.

    Attributes:
        repository_rows: The cells of each repository.
        repository_means: The mean scores of each repository, and semble's figure.
        by_category: The scores of all queries of a category.
    """

    def __init__(self) -> None:
        self.repository_rows: list[list[object]] = []
        self.repository_means: list[list[float]] = []
        self.by_category = defaultdict[str, Scores](list)

    def add(self, name: str, queries: Sequence[Query], scores: Scores, semble: float) -> None:
        """Add a repository."""
        for query, query_scores in zip(queries, scores, strict=True):
            self.by_category[query.category].append(query_scores)
            self.by_category["all queries"].append(query_scores)
        means = np.mean(scores, axis=0).tolist()
        self.repository_means.append([*means, semble])
        self.repository_rows.append(table_row(name, scores, f"{semble:.3f}"))

    def table(self) -> str:
        """Return the table of all repositories."""
        header = ["", "queries"]
        for unit in (BY_LINE, BY_FILE):
            header += [f"{system}, {unit}" for system in SYSTEMS]
        header.append("semble, published")
        header.append("ours less stock by line, hundredths")

        rows = list(self.repository_rows)
        for category, scores in sorted(self.by_category.items()):
            rows.append(table_row(category, scores, ""))
        means = np.mean(self.repository_means, axis=0)
        cells = [f"{mean:.3f}" for mean in means]
        rows.append(["mean of repositories", len(self.repository_means), *cells, ""])
        return markdown_table(header, rows)


def table_row(name: str, scores: Scores, semble: str) -> list[object]:
    """Return the cells of some queries."""
    values = np.array(scores)
    means = [f"{mean:.3f}" for mean in values.mean(axis=0)]
    stock = values[:, [SYSTEMS.index(STOCK)]]
    ours = values[:, [SYSTEMS.index(OURS)]]
    difference = intervals(100 * (ours - stock))
    return [name, len(values), *means, semble, *difference]


def read_scores(file: Path | None) -> dict[str, Scores]:
    """Read the scores of earlier runs by repository."""
    if file is None or not file.exists():
        return {}
    scores: dict[str, Scores] = json.loads(file.read_text("utf-8"))
    return scores


def main() -> None:
    """Measure the repositories whose files are there and print tables."""
    options = command_line(
        __doc__,
        semble=Path,
        checkouts=Path,
        repositories=[str],
        scores=Path,
    )
    if not options.semble:
        sys.exit("Name the folder `benchmarks` of a clone of semble with --semble.")
    embedding = RememberingEmbedding()
    figures = published(options.semble)
    all_scores = read_scores(options.scores)
    results = Results()
    for name in options.repositories or sorted(figures):
        folder = folder_of(name, options.checkouts)
        if folder is None:
            continue
        queries = read_queries(options.semble / "annotations" / f"{name}.json")
        if name not in all_scores:
            documents = read_documents(folder)
            systems = retrievers(documents, embedding)
            all_scores[name] = measure(queries, systems, embedding)
            if options.scores:
                options.scores.write_text(json.dumps(all_scores), "utf-8")
        results.add(name, queries, all_scores[name], figures[name])
        print(results.repository_rows[-1], file=sys.stderr, flush=True)
    print(f"{machine()}; embedding {embedding.inner.model_name}.")
    print(f"\n{results.table()}")


if __name__ == "__main__":
    main()
