"""The words and figures of the reports on an index."""

from dataclasses import replace

import pytest

from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.status import (
    Freshness,
    IndexStatus,
    RefreshReport,
    languages_in_words,
    shares_of_languages,
)

GERMAN = "Der Hund ist in der Küche und frisst die Karotten, weil er hungrig ist."
ENGLISH = "The dog is in the kitchen and eats the carrots, because it is hungry."


def test_languages_are_weighed_by_their_letters_and_the_largest_comes_first():
    shares = shares_of_languages([ENGLISH, f"{GERMAN} {'1234 ' * 50}", GERMAN])
    letters = {text: sum(map(str.isalpha, text)) for text in (GERMAN, ENGLISH)}
    total = 2 * letters[GERMAN] + letters[ENGLISH]
    assert list(shares) == ["de", "en"]
    assert shares["de"] == pytest.approx(2 * letters[GERMAN] / total)
    assert sum(shares.values()) == pytest.approx(1)


def test_texts_without_letters_have_no_language():
    assert shares_of_languages(["123", ""]) == {}


def test_languages_of_less_than_one_percent_are_not_named():
    assert languages_in_words({"de": 0.62, "en": 0.37, "fr": 0.01}) == (
        "German 62%, English 37%, French 1%"
    )
    assert languages_in_words({"de": 0.995, "en": 0.0099}) == "German 100%"


@pytest.mark.parametrize(
    ("freshness", "words"),
    [
        (Freshness(), ""),
        (Freshness(certain=False), ""),
        (Freshness(2), "2 files changed since; run index"),
        (Freshness(1, certain=False), "at least 1 file changed since; run index"),
        (Freshness(refreshing=True), "being indexed"),
        (Freshness(2, refreshing=True), "2 files changed since; being indexed"),
        (Freshness(error="no disk"), "the index could not be brought up to date: no disk"),
        (
            Freshness(2, refreshing=True, error="no disk"),
            "2 files changed since; the index could not be brought up to date: no disk",
        ),
    ],
)
def test_an_answer_says_how_far_the_index_is_behind(freshness, words):
    assert str(freshness) == words
    assert bool(freshness) == bool(words)


REPORT = RefreshReport(
    added=["new.md", "b.md"],
    changed=["a.md"],
    outdated=["c.md"],
    deleted=["old.md"],
    failed=[Problem("x.md", "it is binary")],
    embedded=1200,
    documents=5,
    context_sources={"headings": 6, "": 1},
)


def test_a_report_names_the_work_and_the_size():
    assert REPORT.work == "2 added, 1 changed, 1 made again, 1 deleted, 1 not indexed"
    assert str(REPORT) == f"5 documents, 7 chunks: {REPORT.work}; 1,200 embedded"
    assert str(RefreshReport(skipped=3, documents=1)) == (
        "1 document, 0 chunks: nothing has changed; 0 embedded"
    )


def test_documents_are_indexed_in_the_order_of_their_paths():
    assert REPORT.to_index == ["a.md", "b.md", "c.md", "new.md"]


@pytest.mark.parametrize("list_name", ["added", "changed", "outdated"])
def test_a_document_that_fails_is_not_counted_as_indexed(list_name):
    report = RefreshReport(**{list_name: ["a.md", "b.md"]})
    report.fail("a.md", "it is binary")
    assert report.to_index == ["b.md"]
    assert report.failed == [Problem("a.md", "it is binary")]


STATUS = IndexStatus(
    folders={"": {"path": "/srv/notes", "documents": 5}},
    storage="/data/notes",
    languages={"en": 1.0},
    contexts={"headings": 6, "": 1},
    bytes_on_disk={"index.sqlite3": 1_000_000, "cache": 500_000},
    settings={"embedding.model": "local:bge", "chunks.chunk_size": 200},
    differences=["chunks.chunk_size: 200 → 100"],
    pending=REPORT,
)
LINES = [
    "folder      /srv/notes",
    "storage     /data/notes (1.5 MB)",
    "documents   5 in 7 chunks",
    "languages   English 100%",
    "contexts    6 headings, 1 none",
    f"to refresh  {REPORT.work}",
    f"not indexed {REPORT.failed[0]}",
    "embedding   local:bge",
    "setting     embedding.model = local:bge",
    "setting     chunks.chunk_size = 200",
    "differs     chunks.chunk_size: 200 → 100",
]


def test_a_status_as_text():
    assert str(STATUS).splitlines() == LINES
    assert STATUS.to_text(settings=False).splitlines() == [*LINES[:8], LINES[-1]]


def test_the_status_of_an_empty_index_has_no_empty_cells():
    empty = IndexStatus({}, "/data", {}, {}, {}, {}, [], RefreshReport())
    assert str(empty).splitlines() == [
        "storage     /data (0.0 MB)",
        "documents   0 in 0 chunks",
        "languages   none",
        "contexts    none",
        "to refresh  nothing",
        "embedding   none",
    ]


def test_each_of_several_folders_has_a_line_with_its_name_and_size():
    folders = {
        "notes": {"path": "/srv/notes", "documents": 1},
        "code": {"path": "/srv/code", "documents": 4},
    }
    status = replace(STATUS, folders=folders)
    assert status.documents == 5
    assert str(status).splitlines()[:2] == [
        "folder      notes: /srv/notes (1 document)",
        "folder      code: /srv/code (4 documents)",
    ]


@pytest.mark.parametrize(
    ("problems", "ok", "lines"),
    [
        (None, True, []),
        ([], True, ["checked     files, databases and caches agree"]),
        (["A is lost.", "B is lost."], False, ["checked     A is lost.", "checked     B is lost."]),
    ],
)
def test_a_check_lists_its_problems(problems, ok, lines):
    status = replace(STATUS, problems=problems)
    assert status.ok == ok
    assert str(status).splitlines()[len(LINES) :] == lines
