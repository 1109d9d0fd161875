"""The digest of ``ranking="derived"``: its queries, and the formulas that its authors publish."""

import re
from datetime import date, datetime, timezone

import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.memory.digest import MemoryEntry
from llama_index_contextual.memory.gate import derive_queries
from llama_index_contextual.memory.ranking import derived_score, rank_by_formulas
from llama_index_contextual.retrievers.query_dates import lexicon_of

TODAY = date(2026, 4, 10)


def hit(path, score):
    return MemoryEntry(TextNode(id_=path, text=path, metadata={"path": path}), score)


@pytest.mark.parametrize(
    ("message", "queries"),
    [
        ("¿le gusta el jengibre a JC?", ("¿le gusta el jengibre a JC?", "gusta jengibre", "JC")),
        ("ginger tea", ("ginger tea",)),
        ("What is the timeout?", ("What is the timeout?", "timeout")),
        ("Pumps fail in July?", ("Pumps fail in July?", "pumps fail", "July")),
        ("is NASA late, nasa?", ("is NASA late, nasa?", "late", "NASA")),
        (
            "valve bbbbbb cc cccccc dddddd eeeeee ffffff valve",
            (
                "valve bbbbbb cc cccccc dddddd eeeeee ffffff valve",
                "valve bbbbbb cccccc dddddd eeeeee",
            ),
        ),
        ("JC drinks tea", ("JC drinks tea", "drinks tea", "JC")),
        ("Ginger tea!", ("Ginger tea!",)),  # its keywords are the same words
        ("I met The Boss", ("I met The Boss", "met", "Boss")),
        ("I drink ginger tea", ("I drink ginger tea", "drink ginger tea")),
        ("did Marta's sister call?", ("did Marta's sister call?", "sister call", "Marta")),
    ],
)
def test_queries_are_the_message_its_keywords_and_its_names(message, queries):
    assert derive_queries(message, lexicon_of(message)) == queries


def test_queries_have_at_most_500_characters_and_five_keywords():
    message = "one timeout " + " ".join(f"subject{number}" for number in range(10, 99))
    original, keywords = derive_queries(message, lexicon_of(message))
    assert original == message[:500].rstrip()
    assert keywords == "subject10 subject11 subject12 subject13 subject14"


@pytest.mark.parametrize(
    ("scores", "age", "score"),
    [
        ([0.4], None, 0.4),
        ([0.4], 30, 0.2),
        ([0.4], 60, 0.1),
        ([0.8, 0.4], None, 0.92),
        ([0.8, 0.4], 30, 0.46),
    ],
)
def test_the_formulas_of_a_score(scores, age, score):
    assert derived_score(scores, age) == pytest.approx(score)


def test_only_notes_with_dates_in_their_paths_age():
    pools = [[hit("memory/2026-03-11.md", 0.8), hit("MEMORY.md", 0.7)], [hit("MEMORY.md", 0.2)]]
    first, second = rank_by_formulas(pools, TODAY, 30)
    assert (first.id, first.score) == ("MEMORY.md", pytest.approx(0.7 * 1.15))
    assert (second.id, second.score) == ("memory/2026-03-11.md", pytest.approx(0.4))
    assert rank_by_formulas(pools, None, 30)[1].score == pytest.approx(0.8)


def test_a_digest_has_four_entries_and_its_json_the_queries(retriever):
    memory = MemoryContext(retriever, ranking="derived")
    digest = memory.get("does JC like ginger?", now=datetime(2026, 4, 10, tzinfo=timezone.utc))
    assert digest.queries == ("does JC like ginger?", "like ginger", "JC")
    assert 0 < len(digest.entries) <= 4
    assert "memory/2026-04-05.md" in [entry.path for entry in digest.entries]
    assert re.match(r"- \[memory/2026-04-09.md#L\d-L\d\] \S", digest.markdown.splitlines()[1])
    assert digest.to_dict()["queries"] == digest.queries
    assert memory.get("who wrote the zebra quark oratorio?").entries == ()
