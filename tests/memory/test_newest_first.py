"""The newest statement about a subject comes first in the digest of a question."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
)
from llama_index_contextual.memory.digest import MemoryEntry
from llama_index_contextual.memory.ranking import best_statement, newest_first, without_repetitions
from llama_index_contextual.retrievers.terms import query_groups

DATA = json.loads(Path(__file__).with_name("changed_statements.json").read_text("utf-8"))
NOW = date.fromisoformat(DATA["now"])
TIMEOUT = "what is the upload timeout?"


def memory_of(notes, **settings):
    """Return a memory over the background notes and further notes."""
    documents = [
        Document(text=text, id_=path, metadata={"path": path})
        for path, text in {**DATA["background"], **notes}.items()
    ]
    nodes = HeadingAwareMarkdownNodeParser().get_nodes_from_documents(documents)
    keyword = ContextualBM25Retriever(ContextualNodePostprocessor()(nodes))
    return MemoryContext(ContextualFusionRetriever([keyword]), **settings)


def memory_of_days(notes, **settings):
    """Return a memory over daily notes. Each note is given as its day and its text."""
    texts = {f"memory/{day}.md": f"# {day}\n\n{text}\n" for day, text in notes.items()}
    return memory_of(texts, **settings)


def paths_of(memory, question):
    return [entry.path for entry in memory.get(question, now=NOW).entries]


@pytest.mark.parametrize("pair", DATA["pairs"], ids=lambda pair: pair["question"])
def test_the_newer_statement_comes_first(pair):
    old_path, old_text = pair["old"]
    new_path, new_text = pair["new"]
    memory = memory_of({old_path: old_text, new_path: new_text})
    paths = paths_of(memory, pair["question"])
    assert paths[0] == new_path
    assert old_path in paths


def test_nearly_all_pairs_written_after_the_rule_have_the_newer_first():
    """The older statement stays first if the newer one does not contain the question's words.

    "The pool is closed" does not answer "Is the pool open?" in its words.
    """
    newest_first_count = 0
    for pair in DATA["held_out_pairs"]:
        memory = memory_of(dict([pair["old"], pair["new"]]))
        newest_first_count += paths_of(memory, pair["question"])[0] == pair["new"][0]
    assert newest_first_count >= 18


def test_a_value_that_changed_several_times_is_shown_newest_first():
    values = {"2026-01-07": 30, "2026-03-20": 60, "2026-02-11": 45, "2026-03-02": 50}
    memory = memory_of_days({day: f"- upload timeout: {value}" for day, value in values.items()})
    days = [entry.date for entry in memory.get(TIMEOUT, now=NOW).entries]
    assert days == sorted(values, reverse=True)


def test_values_from_the_same_day_are_sorted_by_relevance():
    """Two values of one day keep the order of their relevance, whatever file or line they are in."""  # noqa: E501
    notes = {
        "memory/2026-02-11-a.md": "# Upload\n\nThe upload timeout is 30, the upload timeout.\n",
        "memory/2026-02-11-b.md": "# Notes\n\nWe talked about the upload, and its timeout is 60.\n",
    }
    newer_note = {"memory/2026-03-11-b.md": notes.pop("memory/2026-02-11-b.md")}
    same_day = {"memory/2026-02-11-b.md": newer_note["memory/2026-03-11-b.md"]}
    assert paths_of(memory_of({**notes, **same_day}), TIMEOUT)[0] == "memory/2026-02-11-a.md"
    assert paths_of(memory_of({**notes, **newer_note}), TIMEOUT)[0] == "memory/2026-03-11-b.md"


def test_a_newer_note_about_something_else_stays_below():
    memory = memory_of_days(
        {
            "2026-02-11": "- The timeout of the upload is 30.",
            "2026-03-02": "- The timeout of the football game was long.",
            "2026-03-05": "- The upload went well.",
        }
    )
    assert paths_of(memory, "what is the timeout of the upload?")[0] == "memory/2026-02-11.md"


def test_a_heading_alone_is_not_a_statement():
    memory = memory_of_days(
        {
            "2026-02-11": "The upload timeout is 30.",
            "2026-03-02": "## Upload timeout\n\n## Lunch\n\nSoup.",
        }
    )
    assert paths_of(memory, TIMEOUT)[0] == "memory/2026-02-11.md"


def test_a_heading_only_counts_for_the_sentences_below_it():
    memory = memory_of_days(
        {
            "2026-02-11": "The upload timeout is 30.",
            "2026-03-02": "## Upload\n\nAll went well.\n\n## Football\n\nThe timeout was long.",
        }
    )
    assert paths_of(memory, TIMEOUT)[0] == "memory/2026-02-11.md"
    memory = memory_of_days(
        {
            "2026-02-11": "The upload timeout is 30.",
            "2026-03-02": "## Football\n\nAll went well.\n\n## Upload\n\nThe timeout is 60.",
        }
    )
    assert paths_of(memory, TIMEOUT)[0] == "memory/2026-03-02.md"


def test_a_statement_has_the_day_of_its_heading():
    log = "# Log\n\n## 2026-01-05\n\nThe upload timeout is 30.\n"
    memory = memory_of(
        {"log.md": log, "memory/2026-02-11.md": "# Day\n\nThe timeout of the upload is 45.\n"}
    )
    assert paths_of(memory, TIMEOUT)[0] == "memory/2026-02-11.md"
    memory = memory_of(
        {
            "log.md": log.replace("2026-01-05", "2026-03-05"),
            "memory/2026-02-11.md": "# Day\n\nThe timeout of the upload is 45, the upload timeout.\n",  # noqa: E501
        }
    )
    assert paths_of(memory, TIMEOUT)[0] == "log.md"


def test_if_a_day_is_named_the_note_from_that_day_comes_first():
    memory = memory_of_days(
        {"2026-02-11": "- upload timeout: 30", "2026-03-02": "- upload timeout: 60"}
    )
    paths = paths_of(memory, "what was the upload timeout on 11 February 2026?")
    assert paths[0] == "memory/2026-02-11.md"


def test_with_recency_off_hits_are_sorted_by_relevance_alone():
    texts = {
        "2026-02-11": "The upload timeout is 30, the upload timeout.",
        "2026-03-02": "In the meeting somebody said that the timeout of the upload may now be 60.",
    }
    assert paths_of(memory_of_days(texts), TIMEOUT)[0] == "memory/2026-03-02.md"
    off = memory_of_days(texts, include_recency=False)
    assert paths_of(off, TIMEOUT)[0] == "memory/2026-02-11.md"


def test_undated_and_evergreen_notes_keep_their_place():
    undated = {
        "upload.md": "# Upload\n\nThe upload timeout is 20.\n",
        "memory/2026-03-02.md": "# Day\n\nSomebody said that the timeout of the upload may be 60.\n",  # noqa: E501
    }
    assert paths_of(memory_of(undated), TIMEOUT)[0] == "upload.md"
    dated = {
        "people/2025-01-01.md": undated["upload.md"],
        "memory/2026-03-02.md": undated["memory/2026-03-02.md"],
    }
    assert paths_of(memory_of(dated), TIMEOUT)[0] == "memory/2026-03-02.md"
    evergreen = memory_of(dated, evergreen=["people/*"])
    assert paths_of(evergreen, TIMEOUT)[0] == "people/2025-01-01.md"


def test_nothing_below_the_relevance_threshold_is_shown_as_current():
    memory = memory_of_days(
        {
            "2026-02-11": "- Lunch: soup",
            "2026-03-02": "- Lunch: pasta",
            "2026-03-20": "- Lunch: rice",
        }
    )
    digest = memory.get("what is the capital of Mongolia?", now=NOW)
    assert digest.entries == ()
    assert "current" not in digest.markdown


def test_the_newest_of_several_near_duplicates_is_shown():
    plan = (
        "We water the tomatoes at seven, feed the cat at eight, call the bank at nine, meet the "
        "neighbours at ten, have lunch at noon, and the gate code for all visitors is {} as ever."
    )
    memory = memory_of_days({"2026-02-11": plan.format(4471), "2026-03-02": plan.format(9023)})
    paths = paths_of(memory, "what is the gate code?")
    assert "memory/2026-03-02.md" in paths
    assert "memory/2026-02-11.md" not in paths
    asked = memory.get("what was the gate code on 11 February 2026?", now=NOW)
    assert asked.entries[0].path == "memory/2026-02-11.md"


def hit(day, text, score=1.0):
    metadata = {"path": f"memory/{day}.md"}
    return MemoryEntry(TextNode(id_=day, text=text, metadata=metadata), score, {"tea": 1.0})


def test_only_statements_about_the_subject_change_ranks():
    hits = [
        hit("2026-01-01", "Tea is at four."),
        hit("2026-04-01", "Soup."),
        hit("2026-03-01", "Tea is at five."),
        hit("2026-02-01", "Tea is at six."),
    ]
    ordered = newest_first(hits, {("tea", "teas"): 1.0})
    assert [entry.id for entry in ordered] == [
        "2026-03-01",
        "2026-04-01",
        "2026-02-01",
        "2026-01-01",
    ]
    assert newest_first(hits, {}) == hits
    assert newest_first([], {("tea",): 1.0}) == []


@pytest.mark.parametrize(
    ("heading", "is_subject"),
    [("Sunday", False), ("2026-04-01", False), ("Sunday, 1 April 2026", False), ("Sundays", True)],
)
def test_a_heading_that_names_a_day_is_not_a_subject(heading, is_subject):
    subject = {("sunday", "sundays"): 1.0, ("tea",): 1.0}
    note = hit("2026-04-01", f"## {heading}\n\nGinger tea.")

    assert best_statement(note, subject).weight == (2.0 if is_subject else 1.0)
    below = replace(note, node=TextNode(text="Ginger tea.", metadata={"header_path": heading}))
    assert best_statement(below, subject).weight == (2.0 if is_subject else 1.0)


def test_the_newest_near_duplicate_gets_the_rank_of_the_best():
    hits = [hit("2026-01-01", "tea"), hit("2026-02-01", "soup"), hit("2026-03-01", "tea")]
    best = without_repetitions(hits, 3)
    newest = without_repetitions(hits, 3, keep_newest=True)
    assert [entry.id for entry in best] == ["2026-01-01", "2026-02-01"]
    assert [entry.id for entry in newest] == ["2026-03-01", "2026-02-01"]
    older_last = without_repetitions(list(reversed(hits)), 3, keep_newest=True)
    assert [entry.id for entry in older_last] == ["2026-03-01", "2026-02-01"]


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
def test_the_newest_of_several_statements_in_a_chunk_is_used(order):
    days = ["## 2026-01-05\n\nTea is at four.\n", "## 2026-03-05\n\nTea is at five.\n"]
    text = "\n".join(days[::order])
    log = MemoryEntry(TextNode(id_="log", text=text, metadata={"path": "log.md"}), 1.0)
    statement = best_statement(log, {("tea",): 1.0})
    assert statement == (1.0, date(2026, 3, 5))


def test_the_best_of_near_duplicates_from_the_same_day_stays():
    hits = [
        MemoryEntry(TextNode(id_=name, text="tea", metadata={"path": f"2026-01-01-{name}.md"}), 1.0)
        for name in "ab"
    ]
    assert [entry.id for entry in without_repetitions(hits, 3, keep_newest=True)] == ["a"]


@pytest.mark.parametrize(
    ("newer_text", "first"),
    [
        ("red tea cup lid.", "new"),  # four fifths of the subject
        ("red tea cup.", "old"),
    ],
)
def test_a_statement_contains_four_fifths_of_the_subject(newer_text, first):
    subject = {(word,): 1.0 for word in ("red", "tea", "cup", "lid", "rim")}
    texts = {"old": ("2026-01-05", "red tea cup lid rim."), "new": ("2026-03-05", newer_text)}
    hits = [
        MemoryEntry(TextNode(id_=name, text=text, metadata={"path": f"{day}.md"}), 1.0)
        for name, (day, text) in texts.items()
    ]
    assert newest_first(hits, subject)[0].id == first


def test_three_quarters_of_the_subject_are_not_enough():
    subject = {(word,): 1.0 for word in ("red", "tea", "cup", "lid")}
    hits = [hit("2026-01-05", "red tea cup lid."), hit("2026-03-05", "red tea cup.")]
    assert newest_first(hits, subject) == hits


def test_the_day_of_a_heading_takes_precedence_over_that_of_the_note():
    text = "## 2026-01-05\n\nTea is at four.\n"
    entry = MemoryEntry(TextNode(text=text, metadata={"path": "2026-04-01.md"}), 1.0)
    assert best_statement(entry, {("tea",): 1.0}).day == date(2026, 1, 5)


def test_a_statement_without_a_dated_heading_has_the_day_of_its_note():
    entry = MemoryEntry(TextNode(text="Tea is at four.", metadata={"path": "2026-04-01.md"}), 1.0)
    assert best_statement(entry, {("tea",): 1.0}).day == date(2026, 4, 1)


def test_a_newer_sentence_with_less_of_the_subject_is_not_the_statement():
    text = (
        "# 2026-03-01\n\nThe retry limit of the importer is 3.\n\n"
        "# 2026-04-01\n\nThe importer was late.\n"
    )
    subject = dict.fromkeys(query_groups("retry limit importer"), 1.0)
    statement = best_statement(MemoryEntry(TextNode(text=text), 1.0), subject)
    assert statement == (3.0, date(2026, 3, 1))
