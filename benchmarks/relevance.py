"""Fit relevance, and measure what a cut by it costs: questions with known answers against nonsense.

    python benchmarks/relevance.py [--out FILE]

Nonsense are 100 queries: keyboard mash, questions in languages that the notes are not in, and English questions of
general knowledge. An index that holds nothing of the kind should find nothing. Beside them stand questions of the other
sets ("strangers"), which the model is not trained on; now and then an index does hold something on them. Of the seven
notes stand questions in other words beside them, which have to find something. A question whose every word the index
knows is never cut by default, so it is not cut here. "Half known" are 100 queries of a known and an invented word. All
figures of a set come from weights that were fitted without it; the seven notes of ``examples/notes`` are never fitted
on. The weights that are printed are those of ``retrievers/learned.py``, fitted on all sets.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import DataSet, Question, codebases, course_lessons, locomo_notes
from llama_index.core.schema import BaseNode, Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual import ContextualFusionRetriever
from llama_index_contextual.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual import ContextualBM25Retriever, ContextualVectorRetriever

Floats = Any  # a numpy array of float64

NOTES: Final = "the seven notes"
HALF: Final = "half known"
CUTS: Final = (0.002, 0.005, 0.02, 0.05, 0.2)
FEW: Final = 3  # collections that are asked nonsense
VARIANTS: Final = {
    "cosine and words": ("cosine", "words", "unknown"),
    "nearness and words": ("nearness", "words", "unknown"),
    "cosine": ("cosine",),
    "nearness": ("nearness",),
    "words": ("words", "unknown"),
}

MASH = """
asdfghjkl | qwertyuiop zxcvbnm | fnord flurbel gnix | hjkl; | zzz yyy xxx | skjdfh ksjdhf | ???? | lkjhgf |
aaaaaaaaaa | sdf sdf sdf | wqerqwe rqwer | jjjjkkkk | xcvbxcvb nmnm | poiuytrewq | dfgdfg hfghfgh | blarg
wibble quux | gjfkdls ajfkdl | mnbvcxz lkjhg | vbnmfghj | !!!! .... | uiouio jkljkl | tttttt | qazwsxedc
rfvtgb | ghghgh ytytyt | ewqdsa cxzewq | plokij uhygtf | oooooo ppppp | xyzzy plugh | rtyu fghj vbnm | kkk lll
mmm nnn | adsfasdf adsfasdf adsf | qpwoeiruty | hnujmik olp | yhn ujm ikol
"""

FOREIGN = """
Wie backt man einen Kirschkuchen? | Quel temps fait-il à Marseille demain ? |
Dove si trova il Colosseo? | Missä on lähin rautatieasema? | Hvor mange
mennesker bor i Bergen? | Hur lagar man köttbullar? | Jak ugotować barszcz
czerwony? | Kolik stojí lístek do divadla? | Mennyibe kerül egy kiló alma? |
Când pleacă trenul spre Cluj? | Wat is het hoogste gebouw van Rotterdam? | Qual
é a melhor praia de Portugal? | Wann beginnt die Bundesliga wieder? | Comment
faire pousser des tomates ? | Quanto costa un biglietto per Venezia? | Mikä on
Suomen korkein tunturi? | Hvilken fisk er best til suppe? | Varför är himlen
blå? | Kto wygrał mistrzostwa w skokach narciarskich? | Kdy byla založena
Karlova univerzita? | ¿Cuánto tarda en cocerse un huevo? | ¿Quién pintó Las
Meninas? | 明日の天気はどうですか | 寿司の作り方を教えてください | 北京有什么好吃的 | 怎么学习弹钢琴 | Какая самая
длинная река в России? | Как приготовить блины? | 서울에서 부산까지 얼마나 걸리나요 | ما هي
عاصمة المغرب؟ | मुंबई में मौसम कैसा है | Πού είναι η Ακρόπολη; | İstanbul'da
hava nasıl?
"""  # noqa: RUF001  Turkish has such letters

OFF_TOPIC = """
best pizza in Naples | who won the 1998 world cup | how to bake sourdough bread | symptoms of measles in
children | capital of Mongolia | how to change a bicycle tyre | when was Mozart born | guitar chords for
beginners | how tall is Mount Kilimanjaro | what do pandas eat | how many moons does Jupiter have | who
painted the Sistine Chapel | how to remove wine stains from a carpet | what causes volcanic eruptions |
average lifespan of a tortoise | rules of cricket explained | how deep is the Mariana Trench | history of the
Ottoman Empire | what is the boiling point of mercury | how to prune apple trees | who discovered penicillin |
how do bees make honey | tallest waterfall in Venezuela | what language is spoken in Suriname | how to knit a
scarf | when did the Titanic sink | why do cats purr | how to treat a bee sting | what is the national dish of
Ethiopia | how are diamonds formed | who composed the Four Seasons | which planet has the strongest winds |
how long does it take to boil lobster
"""

# Of the seven notes: questions that they answer in other words. Nothing may take their hits away.
OTHER_WORDS: Final = (
    "incident", "crash", "slowness", "downtime last month", "which database engine did we pick?",
    "what are our servers called?", "how often do we ship?", "how long until a request gives up?",
    "when can nothing be deployed?", "shipping schedule",
)  # fmt: skip

KINDS: Final = {
    kind: [query.strip() for query in queries.replace("\n", " ").split(" | ")]
    for kind, queries in (("mash", MASH), ("foreign", FOREIGN), ("off-topic", OFF_TOPIC))
}


@dataclass
class Asked:
    """What one index gave for one query.

    Attributes:
        kind: "own" where the index can answer, "other words" where it can and nothing says with which chunk, else why
            it cannot.
        every: Whether the index knows every word of it: then nothing is cut by default.
        spelled: Whether the local model knows a word of it.
        features: By name; see ``relevance()`` of ``retrievers/learned.py``.
        shares: Scores of the first 20 hits as a share of the best.
        gained: The part of the question's gold that each of them adds.
    """

    kind: str
    every: bool
    spelled: bool
    features: dict[str, float]
    shares: Floats
    gained: Floats


class Searched:
    """One collection, and both of its arms."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding) -> None:
        context = "pattern" if data.chunks else "headings"
        bench, row = Bench(data, collection, embedding), Row("", context, context)
        self.vector: ContextualVectorRetriever = bench.retriever(replace(row, sparse=None))  # type: ignore[assignment]
        self.keyword: ContextualBM25Retriever = bench.retriever(replace(row, dense=None))  # type: ignore[assignment]
        self.fusion = ContextualFusionRetriever(
            [self.vector, self.keyword], mode="learned", similarity_top_k=20, min_score=0
        )
        self.covers = data.covers

    def ask(self, kind: str, question: Question, vector: list[float]) -> Asked:
        """Ask both arms and their fusion."""
        bundle = QueryBundle(question.text, embedding=vector)
        hits = self.fusion.retrieve(bundle)
        cosines = [float(one.score or 0) for one in self.vector.candidates(bundle, POOL)]
        high, low = max(cosines), min(cosines)
        found = self.keyword.term_scores(question.text, [hits[0].node.node_id])
        features = {
            "cosine": high,
            "nearness": (high - low) / (1 - low),
            "words": (found.shares() or [0.0])[0],
            "unknown": float(not any(found.frequencies)),
        }
        scores, left, gained = np.array([hit.score or 0.0 for hit in hits]), set(question.gold), []
        for hit in hits:
            new = left & self.covers(hit.node)
            left -= new
            gained.append(len(new) / max(1, len(question.gold)))
        every = all(found.frequencies) and bool(found.frequencies)
        return Asked(kind, every, is_spelled(question.text), features, scores / scores[0], np.array(gained))


def answers_of(data: DataSet, strangers: Sequence[str], embedding: RememberingEmbedding) -> list[Asked]:
    """Ask all questions of a set, and nonsense of its first collections."""
    asked = []
    for number, collection in enumerate(data.documents):
        searched = Searched(data, collection, embedding)
        batch = [("own", question) for question in data.questions if question.collection == collection]
        if number < FEW:
            batch += [(kind, Question(text, frozenset())) for kind, texts in KINDS.items() for text in texts]
            batch += [("stranger", Question(text, frozenset())) for text in strangers]
            batch += [(HALF, Question(text, frozenset())) for text in half_known(searched.keyword)]
        if data.name == NOTES:
            batch += [("other words", Question(text, frozenset())) for text in OTHER_WORDS]
        vectors = embedding.get_text_embedding_batch([question.text for _, question in batch])
        asked += [searched.ask(kind, one, vector) for (kind, one), vector in zip(batch, vectors, strict=True)]
    return asked


def half_known(keyword: ContextualBM25Retriever) -> list[str]:
    """Return 100 queries of a word that chunks hold and one that nobody uses."""
    rng = random.Random(7)  # noqa: S311  no secret
    texts = " ".join(node.get_content() for node in keyword.nodes(keyword.node_ids).values())
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z]{4,12}", texts)})
    words = [word for word in words if any(keyword.document_frequency(word).values())]
    invented = [word for query in KINDS["mash"] for word in query.split() if word.isalpha()]
    return [f"{word} {rng.choice(invented)}" for word in rng.choices(words, k=100)]


def example_notes() -> DataSet:
    """The notes that come with the project, and six questions."""
    folder = Path(__file__).resolve().parents[1] / "examples" / "notes"
    paths = [(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.md"))]
    documents = [Document(text=path.read_text("utf-8"), id_=name, metadata={"path": name}) for path, name in paths]
    gold = {
        "What is the default timeout of the gateway?": "docs/gateway.md",
        "which colour scheme for dashboards": "MEMORY.md",
        "where do secrets live": "MEMORY.md",
        "when are releases tagged": "MEMORY.md",
        "why did we move sessions to Redis?": "MEMORY.md",
        "what is the retry budget": "MEMORY.md",
    }
    questions = [Question(text, frozenset([path])) for text, path in gold.items()]

    def covers(node: BaseNode) -> frozenset[Any]:
        return frozenset([node.ref_doc_id])

    return DataSet(NOTES, {"": documents}, questions, covers, {})


def fit(sets: Sequence[Sequence[Asked]], names: Sequence[str]) -> Floats:
    """Constant and weights of a logistic model: questions whose gold was found against nonsense, weighing the same."""
    rows, truth, weight = [], [], []
    for asked in sets:
        for answered in (True, False):
            part = [one for one in asked if (one.kind == "own" and one.gained.any()) == answered]
            part = [one for one in part if one.kind == "own" or one.kind in KINDS]
            part = [one for one in part if answered or one.kind != "own"]
            rows += [[one.features[name] for name in names] for one in part]
            truth += [float(answered)] * len(part)
            weight += [500 / len(part)] * len(part)
    inputs, y, w = np.column_stack([np.ones(len(rows)), np.array(rows)]), np.array(truth), np.array(weight)
    found = np.zeros(inputs.shape[1])
    for _ in range(60):  # Newton's method, shrunk a little
        chance = 1 / (1 + np.exp(-inputs @ found))
        slope = inputs.T @ (w * (y - chance)) - 0.01 * np.r_[0, found[1:]]
        bend = (inputs * (w * chance * (1 - chance))[:, None]).T @ inputs + 0.01 * np.diag([0, *np.ones(len(names))])
        found += np.linalg.solve(bend + 1e-9 * np.eye(len(bend)), slope)
    return found


class Fits(NamedTuple):
    """A model, and the same without words, which also judges questions that have a word of English."""

    variant: str
    weights: Floats
    without_words: Floats | None

    @classmethod
    def to(cls, sets: Sequence[Sequence[Asked]], variant: str) -> Fits:
        """Fit both."""
        vectors = VARIANTS[variant][:1]
        other = None if vectors[0] == "words" or vectors == VARIANTS[variant] else fit(sets, vectors)
        return cls(variant, fit(sets, VARIANTS[variant]), other)

    def chances(self, asked: Sequence[Asked]) -> Floats:
        """The relevance of each query's best hit: the more hopeful model counts."""
        found = _chances(asked, self.weights, VARIANTS[self.variant])
        if self.without_words is None:
            return found
        hopeful = np.maximum(found, _chances(asked, self.without_words, VARIANTS[self.variant][:1]))
        return np.where([one.spelled for one in asked], hopeful, found)


def _chances(asked: Sequence[Asked], weights: Floats, names: Sequence[str]) -> Floats:
    return 1 / (1 + np.exp(-weights[0] - np.array([[one.features[n] for n in names] for one in asked]) @ weights[1:]))


def costs(sets: dict[str, list[Asked]], variant: str) -> list[list[object]]:
    """For each set and cut what is lost of its own questions, and how much nonsense finds nothing."""
    rows: list[list[object]] = []
    for name, asked in sets.items():
        fits = Fits.to([other for key, other in sets.items() if key not in {name, NOTES}], variant)
        own = [one for one in asked if one.kind == "own"]
        depths = (1, 3, 5) if name == "course-lessons" else (5, 10, 20)
        for cut in CUTS:
            lost = [
                np.mean(
                    [
                        0.0 if one.every else (one.gained * (chance * one.shares < cut))[:k].sum()
                        for one, chance in zip(own, fits.chances(own), strict=True)
                    ]
                )
                for k in depths
            ]
            cells = []
            for kind in (*KINDS, "stranger", "other words", HALF):
                part = [one for one in asked if one.kind == kind]
                cut_off = (fits.chances(part) < cut) & ~np.array([one.every for one in part], bool) if part else None
                cells.append("" if cut_off is None else f"{cut_off.mean():.0%}")
            rows.append([name, str(cut), *(f"{100 * one:.2f}" for one in lost), *cells])
    return rows


def calibration(sets: dict[str, list[Asked]]) -> list[list[object]]:
    """How often gold was found among queries of one relevance, those without an answer weighing as much as questions.

    First nonsense has no answer, then questions of the other sets.
    """
    edges = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0001)
    rows: list[list[object]] = [[f"{low:g} to {min(high, 1):g}"] for low, high in pairwise(edges)]
    for unanswered in (set(KINDS), {"stranger"}):
        right, every = np.zeros(len(rows)), np.zeros(len(rows))
        for name, asked in sets.items():
            if name == NOTES:
                continue
            fits = Fits.to([other for key, other in sets.items() if key not in {name, NOTES}], "cosine and words")
            for kinds in ({"own"}, unanswered):
                part = [one for one in asked if one.kind in kinds]
                at = np.digitize(fits.chances(part), edges) - 1
                for place, one in zip(at, part, strict=True):
                    every[place] += 1 / len(part)
                    right[place] += one.gained.any() / len(part)
        for row, good, share in zip(rows, right, every, strict=True):
            row += [f"{100 * share / every.sum():.1f}", f"{100 * good / share:.0f}" if share else "-"]
    return rows


def main() -> None:
    """Print the weights, what cuts cost, and how well the figure is calibrated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    rng = random.Random(7)  # noqa: S311  no secret
    embedding = RememberingEmbedding()
    data = [codebases(), course_lessons(), locomo_notes(), example_notes()]
    sample = {one.name: [q.text for q in rng.sample(one.questions, 60)] for one in data[:3]}
    sets = {}
    for one in data:
        strangers = [text for name, texts in sample.items() if name != one.name for text in texts]
        sets[one.name] = answers_of(one, strangers, embedding)
    parts = [machine()]
    fitted = [asked for name, asked in sets.items() if name != NOTES]
    rows = []
    for name, names in VARIANTS.items():
        constant, *others = fit(fitted, names)
        given = dict(zip(names, others, strict=True))
        cells = [f"{given[one]:.2f}" if one in given else "" for one in ("cosine", "nearness", "words", "unknown")]
        rows.append([name, f"{constant:.2f}", *cells])
    header = ["fitted on all sets, by", "constant", "cosine", "nearness", "words", "no word is known"]
    parts.append(markdown_table(header, rows))
    for variant in ("cosine and words", "nearness and words"):
        header = [
            "left out",
            "cut",
            "recall lost at 5 (1)",
            "10 (3)",
            "20 (5)",
            *(f"{kind}: nothing" for kind in (*KINDS, "strangers", "other words", HALF)),
        ]
        parts.append(f"By {variant}:\n\n{markdown_table(header, costs(sets, variant))}")
    header = ["relevance", "share of queries, %", "gold among 20 hits, %", "beside strangers: share, %", "gold, %"]
    parts.append(f"Calibration, left out:\n\n{markdown_table(header, calibration(sets))}")
    text = "\n\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
