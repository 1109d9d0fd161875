"""Do questions that are made, by rule or by a language model, rank settings as real questions do?

    python benchmarks/made_questions.py [--sets codebases locomo-notes course-lessons kubernetes-docs] [--most 100]
        [--kinds places sentences both] [--llm ollama:MODEL]

Seven settings are asked the real questions of a set, three kinds that are made by rule, and with ``--llm`` those that a
model makes as ``evaluate`` has it.
Each gives a ranking of the settings by MRR in the first 10 chunks.
Kendall's tau (b, which knows ties) says how far a made ranking agrees with the real one: 1 is the same order, 0 is
chance, -1 is the opposite. Its interval is of a bootstrap over both kinds of questions. "Loss" is what somebody loses
who takes the setting that the made questions put first: its MRR by real questions less that of the really best one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from common import CACHE, RememberingEmbedding, machine, markdown_table
from datasets import DataSet, Question, codebases, course_lessons, kubernetes_docs, locomo_notes
from llama_index.core.schema import QueryBundle
from retrieval import Bench, Row

from llama_index_contextual.app.evaluation import Question as Made
from llama_index_contextual.app.evaluation.questions import WORD, passage, questions_by_llm, sentences, shuffled
from llama_index_contextual.context import LLMContextGenerator
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import TITLE, heading_titles, path_of
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode

Kind = Literal["places", "sentences", "both"]
KINDS: Final[tuple[Kind, ...]] = ("places", "sentences", "both")
MODEL: Final = "model"
_KEPT: Final = 8  # words of a question
DEPTH = 10
CONVERSATIONS = 3  # of locomo-notes
PAGES = 60  # of kubernetes-docs
SETTINGS = [
    Row("text alone", "off", "off"),
    Row("LlamaIndex's metadata", "metadata", "metadata"),
    Row("headings", "headings", "headings"),
    Row("pattern", "pattern", "pattern"),
    Row("headings, keywords only", None, "headings"),
    Row("headings, vectors only", "headings", None),
    Row("headings, by ranks", "headings", "headings", fusion={"mode": "reciprocal_rerank"}),
]


def part_of_locomo() -> DataSet:
    """The first conversations of locomo-notes."""
    data = locomo_notes()
    chosen = sorted(data.documents)[:CONVERSATIONS]
    questions = [one for one in data.questions if one.collection in chosen]
    return DataSet(data.name, {name: data.documents[name] for name in chosen}, questions, data.covers, data.chunks)


def part_of_kubernetes() -> DataSet:
    """Some pages, with the questions that they answer."""
    data = kubernetes_docs(PAGES)
    paths = {document.id_ for document in data.documents[""]}
    questions = [one for one in data.questions if one.gold <= paths]
    return DataSet(data.name, data.documents, questions, data.covers, data.chunks)


SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": codebases,
    "locomo-notes": part_of_locomo,
    "course-lessons": course_lessons,
    "kubernetes-docs": part_of_kubernetes,
}


def questions_by_rule(nodes: Sequence[BaseNode], kind: Kind, most: int) -> list[Made]:
    """Make questions without a language model; each is answered by the chunk that it was made from.

    Args:
        nodes: All chunks of an index.
        kind: ``"places"``: the title of the document and the heading of the chunk. ``"sentences"``: the chunk's
            sentence with the rarest words, without the rarest third of them and without words that only this chunk has.
            ``"both"``: the title, and the rest of the sentence.
        most: How many at most; the chunks are drawn with a fixed seed.

    Returns:
        Different questions. Chunks without a sentence of 6 to 30 words give none.
    """
    analyzer = Analyzer()
    counts = Counter(word for node in nodes for word in set(analyzer.tokens(node.get_content())))
    made: dict[str, Made] = {}
    for node in shuffled(nodes):
        if len(made) >= most:
            break
        sentence = max(sentences(node.get_content()), key=lambda one: _rarity(analyzer, one, counts), default="")
        rest = _reduced(analyzer, sentence, counts)
        place = list(dict.fromkeys([_title(node), *heading_titles(node.metadata)[-1:]]))
        text = {"places": " ".join(place), "sentences": rest, "both": f"{place[0]} {rest}" if rest else ""}[
            kind
        ].strip()
        if sentence and text:
            made.setdefault(text.casefold(), Made(text, (passage(node, sentence),)))
    return list(made.values())


def _rarity(analyzer: Analyzer, sentence: str, counts: Counter[str]) -> float:
    words = set(analyzer.tokens(sentence))
    return sum(-math.log(counts[word]) for word in words if counts[word]) / max(1, len(words))


def _reduced(analyzer: Analyzer, sentence: str, counts: Counter[str]) -> str:
    """Return words of a sentence in their order, without its rarest ones."""
    rank: dict[str, int] = {}
    for word in WORD.findall(sentence):
        tokens = analyzer.query_tokens(word)
        if tokens:
            rank.setdefault(word, max(counts[token] for token in tokens))
    by_rarity = sorted(rank, key=rank.__getitem__)
    kept = {word for word in by_rarity[len(by_rarity) // 3 :] if rank[word] > 1}
    words = [word for word in rank if word in kept][:_KEPT]
    return " ".join(words) if len(words) >= 3 else ""


def _title(node: BaseNode) -> str:
    headings: list[Any] = [node.metadata.get(TITLE), *heading_titles(node.metadata)]
    stem = path_of(node.metadata).rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return str(next((one for one in headings if one), stem))


def ranks(
    data: DataSet, asked: Sequence[Question], benches: dict[str, Bench], vectors: dict[str, list[float]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ask all settings; return 1 / rank of the first gold chunk, shape ``(settings, questions)``."""
    found = np.zeros((len(SETTINGS), len(asked)))
    for place, row in enumerate(SETTINGS):
        retrievers = {name: bench.retriever(row) for name, bench in benches.items()}
        for number, question in enumerate(asked):
            bundle = QueryBundle(question.text, embedding=vectors[question.text])
            hits = [data.covers(hit.node) for hit in retrievers[question.collection].retrieve(bundle)[:DEPTH]]
            found[place, number] = next((1 / rank for rank, hit in enumerate(hits, 1) if hit & question.gold), 0.0)
    return found


def tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b of two lists of scores."""
    a, b = np.asarray(first), np.asarray(second)
    pairs = np.triu_indices(len(a), 1)
    x, y = np.sign(a[:, None] - a)[pairs], np.sign(b[:, None] - b)[pairs]
    ties = np.sqrt(np.count_nonzero(x) * np.count_nonzero(y))
    return float((x * y).sum() / ties) if ties else 0.0


def agreement(real: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Tau of the means, and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = [
        tau(*(one[:, rng.integers(one.shape[1], size=one.shape[1])].mean(axis=1).tolist() for one in (real, made)))
        for _ in range(1000)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return tau(real.mean(axis=1).tolist(), made.mean(axis=1).tolist()), float(low), float(high)


def made_of(benches: dict[str, Bench], kind: Any, most: int, llm: str) -> list[Question]:
    """Make questions of one kind in each collection; their gold is each chunk that holds the sentence."""
    asked = []
    for name, bench in benches.items():
        nodes, each = bench.nodes("off"), most // len(benches)
        if kind == MODEL:
            cache = SQLiteKVStore(CACHE / "questions.sqlite")
            found = questions_by_llm(
                nodes, LLMContextGenerator(llm, cache=False).llm, model=llm, cache=cache, most=each
            )
        else:
            found = questions_by_rule(nodes, kind, each)
        for question in found:
            gold = frozenset(node.node_id for node in nodes if question.covered_by(node))
            asked.append(Question(question.text, gold, name))
    return asked


def main() -> None:
    """Print a table of each set, and one of the agreement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--most", type=int, default=100, help="questions of each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="those that are made by rule")
    parser.add_argument("--llm", default="", help="a language model, which makes questions besides")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    kinds = [*options.kinds, *([MODEL] if options.llm else [])]
    parts, agreed = [f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8."], []
    embedding = RememberingEmbedding()
    for name in options.sets:
        started, data = time.monotonic(), SETS[name]()
        benches = {collection: Bench(data, collection, embedding) for collection in data.documents}
        chunks = sum(len(bench.nodes("off")) for bench in benches.values())
        step = max(1, len(data.questions) // options.most)
        found: dict[str, Any] = {}
        for kind in ("real", *kinds):
            real = data.questions[::step][: options.most]
            asked = real if kind == "real" else made_of(benches, kind, options.most, options.llm)
            covers = data.covers if kind == "real" else lambda node: frozenset({node.node_id})
            texts = sorted({question.text for question in asked})
            vectors = dict(zip(texts, map(embedding.get_query_embedding, texts), strict=True))
            found[kind] = ranks(DataSet(name, data.documents, asked, covers, data.chunks), asked, benches, vectors)
            print(f"{name}, {kind}: {len(asked)} questions, e.g. {asked[0].text!r}, {time.monotonic() - started:.0f} s")
        rows = [[row.name, *(100 * found[kind][n].mean() for kind in found)] for n, row in enumerate(SETTINGS)]
        head = f"### {name}: {chunks} chunks; MRR@{DEPTH} of the settings, %"
        counts = ["", *(f"{kind} ({found[kind].shape[1]})" for kind in found)]
        parts.append(f"{head}\n\n{markdown_table(counts, rows)}")
        truth = 100 * found["real"].mean(axis=1)
        for kind in kinds:
            value, low, high = agreement(found["real"], found[kind])
            first = int(found[kind].mean(axis=1).argmax())
            loss = f"{truth[first] - truth.max():+.1f}"
            agreed.append([name, kind, f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", SETTINGS[first].name, loss])
        print(f"\n{parts[-1]}\n", flush=True)
    header = ["set", "made questions", "Kendall's tau", "they put first", "loss, points"]
    parts.append(f"### Agreement with the real questions\n\n{markdown_table(header, agreed)}")
    print(parts[-1])
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
