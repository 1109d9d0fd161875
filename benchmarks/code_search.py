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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, DataSet
from llama_index.core.schema import Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.utils.metadata import path_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode

TOP: Final = 10
SYSTEMS: Final = ("stock hybrid", "ours by reciprocal ranks", "ours")
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
        path = path_of(node.metadata)
        same_file = f"/{path}".endswith(f"/{self.path}") or f"/{self.path}".endswith(f"/{path}")
        if not same_file or self.start_line is None or self.end_line is None:
            return same_file
        begins_before_end = bool(node.metadata["start_line"] <= self.end_line)
        return begins_before_end and bool(node.metadata["end_line"] >= self.start_line)


@dataclass(frozen=True)
class Query:
    """A query of the benchmark, its category and what answers it."""

    text: str
    category: str
    targets: tuple[Target, ...]

    @property
    def files(self) -> tuple[Target, ...]:
        """Return the files of the targets, without lines."""
        return tuple(Target(path) for path in dict.fromkeys(target.path for target in self.targets))


def gain_of(ranking: Sequence[Hashable], gold: frozenset[Hashable]) -> float:
    """Return nDCG@10 of a ranking in which each item of the gold counts at its first place."""
    first_ranks = [ranking.index(item) for item in gold if item in ranking]
    return ndcg_of_ranks(first_ranks, len(gold))


def ndcg_of_ranks(ranks: Sequence[int], target_count: int) -> float:
    """Return nDCG@10 of the ranks, from 0, at which targets were found, as semble counts it.

    Two targets in one chunk count once.
    """
    gain = sum(1 / math.log2(rank + 2) for rank in {*ranks} if rank < TOP)
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(TOP, target_count)))
    return gain / ideal


def score(nodes: Sequence[BaseNode], targets: Sequence[Target]) -> float:
    """Return nDCG@10 of ranked chunks."""
    ranks = []
    for target in targets:
        hits = [rank for rank, node in enumerate(nodes) if target.is_in(node)]
        ranks += hits[:1]
    return ndcg_of_ranks(ranks, len(targets))


def read_queries(file: Path) -> list[Query]:
    """Read the annotations of a repository."""
    queries = []
    for row in json.loads(file.read_text("utf-8")):
        labels = [*row.get("relevant", []), *row.get("secondary", [])]
        targets = tuple(Target.read(label) for label in labels)
        queries.append(Query(row["query"], row["category"], targets))
    return queries


def read_documents(folder: Path) -> list[Document]:
    """Read the source files of a repository."""
    documents = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_file() and is_code(inside) and not IGNORED_FOLDERS & {*path.parts}:
            text = path.read_bytes().decode("utf-8", "ignore")
            documents.append(Document(text=text, id_=inside, metadata={"path": inside}))
    return documents


def retrievers(
    documents: list[Document], embedding: RememberingEmbedding
) -> dict[str, BaseRetriever]:
    """Return the systems over the same chunks of a repository."""
    data = DataSet("code-search", {"": documents}, [], lambda _: frozenset(), context="pattern")
    bench = Bench(data, "", embedding)
    index = bench.index("pattern")
    stock = bench.retriever(Row("", "off", "off", is_stock=True))
    by_ranks = index.as_retriever(POOL, mode="reciprocal_rerank")
    return dict(zip(SYSTEMS, (stock, by_ranks, index.as_retriever(TOP)), strict=True))


def published(folder: Path) -> dict[str, float]:
    """Return semble's own figures by repository."""
    [file] = folder.glob("results/semble-hybrid-*.json")
    rows = json.loads(file.read_text("utf-8"))["repos"]
    return {row["repo"]: row["ndcg10"] for row in rows}


def folder_of(name: str, checkouts: Path | None) -> Path | None:
    """Return where the files of a repository are."""
    places = [DATA / "code-search" / "corpus" / name]
    if checkouts:
        places.insert(0, checkouts / name)
    return next((place for place in places if place.is_dir()), None)


def measure(
    queries: Sequence[Query], systems: dict[str, BaseRetriever], embedding: RememberingEmbedding
) -> list[list[float]]:
    """Return nDCG@10 of each query: by line for each system, then by file for each system."""
    rows = []
    for query in queries:
        bundle = QueryBundle(query.text, embedding=embedding.get_query_embedding(query.text))
        by_line, by_file = [], []
        for retriever in systems.values():
            nodes = [hit.node for hit in retriever.retrieve(bundle)[:TOP]]
            by_line.append(score(nodes, query.targets))
            by_file.append(score(nodes, query.files))
        rows.append(by_line + by_file)
    return rows


def table_row(name: str, scores: list[list[float]], semble: float | None = None) -> list[object]:
    """Return the cells of some queries."""
    values = np.array(scores)
    means = [f"{mean:.3f}" for mean in values.mean(axis=0)]
    difference = 100 * (values[:, [2]] - values[:, [0]])
    figure = f"{semble:.3f}" if semble is not None else ""
    return [name, len(values), *means, figure, *intervals(difference)]


def main() -> None:
    """Measure the repositories whose files are there and print tables."""
    options = command_line(__doc__, semble=Path, checkouts=Path, repositories=[str], scores=Path)
    if not options.semble:
        sys.exit("Name the folder `benchmarks` of a clone of semble with --semble.")
    embedding = RememberingEmbedding()
    figures = published(options.semble)
    all_scores: dict[str, list[list[float]]] = {}
    if options.scores and options.scores.exists():
        all_scores = json.loads(options.scores.read_text("utf-8"))
    repository_rows = []
    by_category = defaultdict[str, list[list[float]]](list)
    repository_means = []
    for name in options.repositories or sorted(figures):
        folder = folder_of(name, options.checkouts)
        if folder is None:
            continue
        queries = read_queries(options.semble / "annotations" / f"{name}.json")
        if name not in all_scores:
            systems = retrievers(read_documents(folder), embedding)
            all_scores[name] = measure(queries, systems, embedding)
            if options.scores:
                options.scores.write_text(json.dumps(all_scores), "utf-8")
        scores = all_scores[name]
        for query, values in zip(queries, scores, strict=True):
            by_category[query.category].append(values)
            by_category["all queries"].append(values)
        repository_rows.append(table_row(name, scores, figures[name]))
        repository_means.append([*np.mean(scores, axis=0), figures[name]])
        print(repository_rows[-1], file=sys.stderr, flush=True)
    rows = [*repository_rows]
    rows += [table_row(name, values) for name, values in sorted(by_category.items())]
    mean = [f"{value:.3f}" for value in np.mean(repository_means, axis=0)]
    rows.append(["mean of repositories", len(repository_means), *mean, ""])
    header = ["", "queries"]
    header += [f"{system}, {unit}" for unit in ("by line", "by file") for system in SYSTEMS]
    header += ["semble, published", "ours less stock by line, hundredths"]
    print(f"{machine()}; embedding {embedding.inner.model_name}.\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
