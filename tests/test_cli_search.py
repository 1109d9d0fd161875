"""``search`` on the command line.

Hits for a pipe, for a terminal and as JSON, and the options that narrow them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import datetime, timedelta

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.excerpts import excerpt, marked, searched_terms
from llama_index_contextual.retrievers.terms import terms_of


def paths(done):
    return [hit["path"] for hit in json.loads(done.stdout)]


@pytest.mark.long
def test_an_unanswerable_question_returns_nothing(run, notes):
    for question in ("asdfghjkl", "how tall is Mount Kilimanjaro"):
        done = run("search", question, "-f", notes)
        assert (done.returncode, done.stdout) == (0, "")
        assert "Nothing found" in done.stderr
        assert "below min_score=0.05" in done.stderr
        as_data = run("search", question, "-f", notes, "--json")
        assert json.loads(as_data.stdout) == []
        assert as_data.stderr == done.stderr
        shown = json.loads(run("search", question, "-f", notes, "--min-score", 0, "--json").stdout)
        assert 0 < shown[0]["score"] < 0.05
    outside = run("search", "freeze", "-f", notes, "--path", "nowhere/")
    assert outside.stderr.splitlines() == [
        "Nothing found.",
        (
            "no chunk matches the filters: none has a path containing 'nowhere/' (folders that "
            "exist: memory, docs)"
        ),
    ]
    hits = json.loads(
        run("search", "What is the default timeout of the gateway?", "-f", notes, "--json").stdout
    )
    assert 0.9 < hits[0]["score"] <= 1


GOLDEN = """\
1. Gateway reference  docs/gateway.md#L12-L16  1.00
   Gateway > Timeout
   The default value is 60 and can be adjusted via the config file. It is given in seconds and counts from the first {a}
   the request until the last byte of the answer, so a slow download counts in full. A request that exceeds it is {b}
   status 504 and is not retried. Values below 5 are refused at start, because health checks would then fail at random.
"""  # noqa: E501


def test_a_hit_has_name_citation_score_headings_and_three_lines_around_the_match(run, notes):
    done = run(
        "search",
        "What is the default timeout of the gateway?",
        "--folder",
        notes,
        "-k",
        1,
        "--per-file",
        0,
    )
    assert (done.returncode, done.stdout.partition("   3 more")[0]) == (
        0,
        GOLDEN.format(a="byte of", b="closed with"),
    )


def test_two_hits_are_of_one_document_and_a_line_counts_the_others(run, notes):
    shown = run(
        "search", "the timeout of the gateway", "-f", notes, "-k", 4, "--min-score", 0
    ).stdout
    places = [
        line.split("  ")[1].partition("#")[0] for line in shown.splitlines() if line[0].isdigit()
    ]
    assert max(map(places.count, places)) == 2
    assert re.search(
        r"^   \d+ more hits? in this document; --per-file 0 shows all$", shown, re.MULTILINE
    )
    every = json.loads(
        run(
            "search", "the timeout of the gateway", "-f", notes, "-k", 8, "--per-file", 0, "--json"
        ).stdout
    )
    assert max(map([hit["path"] for hit in every].count, {hit["path"] for hit in every})) > 2
    assert all(
        hit["citation"] == f"{hit['path']}#L{hit['start_line']}-L{hit['end_line']}" for hit in every
    )


def test_on_a_terminal_a_hit_keeps_its_margin_and_matched_words_stand_out(run, notes, monkeypatch):
    search = ("search", "default", "timeout", "of the gateway", "-f", notes, "-k", 1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = run(*search).stdout
    assert "\x1b[33m\x1b[1mdefault\x1b[0m" in coloured, "a matched word stands out"
    first, *shown = re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    assert first.startswith("1. ")
    assert all(
        not line.strip() or (line.startswith("   ") and len(line) <= 60) for line in shown[1:]
    )


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("slots nommés", "Guide : slot par défaut", ["slot"]),
        ("comment arrêter un observateur ?", "On arrête un observateur", ["arrête", "observateur"]),
        ("Häuser am Hafen", "Das Haus am Hafen", ["Hafen", "Haus"]),
        ("the user's names", "get_user_name of Ann", ["get_user_name"]),
        ("zanahorias", "Una zanahoria", ["zanahoria"]),
    ],
)
def test_words_are_marked_in_the_language_of_the_question_and_stop_words_are_not(
    question, text, expected
):
    parts = marked(text, searched_terms(question))
    assert sorted(part for is_match, part in parts if is_match) == sorted(expected)


def test_an_excerpt_is_where_the_words_match_and_shows_no_marks_of_markdown():
    text = (
        "# Title\n\nFirst line.\n\n---\n\nMore of it.\n\nSee [the **plan**](plan.md) and "
        "[[Zoo|zebras]].\n"
    )
    zebra = frozenset(terms_of("zebras"))
    assert excerpt(text, zebra) == ["First line.", "More of it.", "See the plan and zebras."]
    text = "See [the\nzebras](http://zoo.org/a_b_c).\nThe *wild* ones of `__init__` and snake_case * 2, **_not_** a*b*c.\n"  # noqa: E501
    assert excerpt(text, zebra) == [
        "See the",
        "zebras.",
        "The wild ones of __init__ and snake_case * 2, _not_ a*b*c.",
    ]
    in_a_table = (
        "| lock | of |\n|---|:-:|\n| [[GIL\\|the lock]] | zebras |\n| | ==new== ~~old~~, a == b |\n"
    )
    assert excerpt(in_a_table, zebra) == ["lock · of", "the lock · zebras", "new old, a == b"]
    for text, line in (
        ("| tide | `x|y` |", "tide · x|y"),
        ("|x| = 5", "|x| = 5"),
        ("**bold *in* text**", "bold in text"),
        ("**`*a*` and b**", "*a* and b"),
        ("![[a.png|400]] [[b|400]]", "a.png 400"),
        ("| **a** | | `c", "| a | | `c"),
    ):
        assert excerpt(text, zebra) == [line]
    [line] = excerpt(f"{'word ' * 200}zebra {'word ' * 200}", zebra)
    assert "zebra" in line
    assert len(line) <= 400


def test_days_can_be_given_in_words(run, tmp_path):
    today = datetime.now().astimezone().date()
    day = today - timedelta(days=today.weekday() + 3)  # in the week before this one
    for number, note_day in enumerate((day, day - timedelta(days=60))):
        (tmp_path / f"{note_day}.md").write_text(
            f"# {note_day}\n\nThe ferry was late, number {number}.\n"
        )
    run("index", tmp_path, "--embed-model", "none")
    assert len(paths(run("search", "ferry", "-f", tmp_path, "--json"))) == 2
    assert paths(run("search", "ferry", "-f", tmp_path, "--since", "last week", "--json")) == [
        f"{day}.md"
    ]


def test_per_file_leaves_room_for_other_files(run, notes):
    def files(*more):
        hits = json.loads(
            run("search", "the gateway", "--folder", notes, "--json", "--top-k", 3, *more).stdout
        )
        return [hit["path"] for hit in hits]

    assert len(set(files())) < 3
    assert len(set(files("--per-file", 1))) == 3
    assert (
        "more hits in this document"
        in run("search", "the gateway", "--folder", notes, "--per-file", 1).stdout
    )


def test_json_is_only_json_and_its_lines_are_right(run, notes):
    hits = json.loads(
        run("search", "restore drill", "--folder", notes, "--json", "--top-k", 3).stdout
    )
    assert len(hits) == 3
    for hit in hits:
        lines = (notes / hit["path"]).read_text("utf-8").splitlines()
        assert (
            hit["text"].strip() == "\n".join(lines[hit["start_line"] - 1 : hit["end_line"]]).strip()
        )


@pytest.mark.long
def test_a_known_page_of_the_kubernetes_docs_is_found_with_its_lines(run, data, tmp_path):
    """The test uses 21 of 1,568 pages; ``benchmarks/retrieval.py`` measures the whole corpus."""
    corpus = data("kubernetes-docs") / "corpus"
    page = "concepts_services-networking_gateway.md"
    small_pages = [
        path for path in sorted(corpus.glob("concepts_*.md")) if path.stat().st_size < 6_000
    ]
    for path in [corpus / page, *small_pages[:20]]:
        shutil.copy(path, tmp_path)
    assert run("index", tmp_path).returncode == 0
    question = (
        "What is the role of the Infrastructure Provider in the design principles of Gateway API?"
    )
    hit, *_ = json.loads(run("search", question, "-f", tmp_path, "--json").stdout)
    assert hit["path"] == page
    lines = (
        (tmp_path / page).read_text("utf-8").splitlines()[hit["start_line"] - 1 : hit["end_line"]]
    )
    assert any("Infrastructure Provider" in line for line in lines)


def test_explain_tells_why(run, notes):
    done = run("search", "restore drill", "-f", notes, "--explain", "--json", "--top-k", 2)
    explained = json.loads(done.stdout)
    assert set(explained["retrievers"]) == {"vector", "bm25"}
    assert len(explained["hits"]) == 2
    assert "bm25" in run("search", "restore drill", "-f", notes, "--explain").stdout


def test_more_hits_than_the_usual_pool_can_be_asked_for(run, tmp_path):
    pages = (f"# Page {number}\n\nThe tea of day {number} was green.\n" for number in range(130))
    for number, page in enumerate(pages):
        (tmp_path / f"{number}.md").write_text(page, "utf-8")
    assert run("index", tmp_path).returncode == 0
    assert (
        len(json.loads(run("search", "green tea", "-f", tmp_path, "--top-k", 120, "--json").stdout))
        == 120
    )
    done = run("context", "what tea was green?", "-f", tmp_path, "--max-results", 120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_search_can_be_narrowed_by_path_tag_and_day(run, notes):
    def search(*more):
        return paths(run("search", "the gateway", "-f", notes, "--json", "--top-k", 20, *more))

    assert set(search("--path", "scheduler")) == {"docs/scheduler.md"}
    assert search("--tag", "no-such-tag") == []
    assert all(path.startswith("memory/2026-1") for path in search("--since", "2026-10-01"))
    assert search("--until", "1999-01-01") == []
    either = search("--path", "scheduler", "--path", "memory/2026-10")
    assert {path.rpartition("/")[0] for path in either} == {"docs", "memory"}
    assert "docs/gateway.md" not in either
    assert search("--tag", "no-such-tag", "--tag", "neither") == []


def test_recency_is_an_option_of_search_and_of_the_retriever(run, tmp_path):
    text = "# Deploy\n\nThe deploy went well.\n"
    for day in ("2019-01-01", "2026-01-01"):
        (tmp_path / f"{day}.md").write_text(text, "utf-8")
    (tmp_path / "undated.md").write_text("# Lunch\n\nSoup.\n", "utf-8")
    assert run("index", tmp_path).returncode == 0
    assert (
        paths(run("search", "deploy", "-f", tmp_path, "--json", "--recency"))[0] == "2026-01-01.md"
    )
    scores = {
        hit["path"]: hit["score"]
        for hit in json.loads(run("search", "deploy", "-f", tmp_path, "--json").stdout)
    }
    with ContextualIndex.open(tmp_path) as index:
        plain, recent = (
            index.as_retriever(recency=recency).retrieve("deploy") for recency in (None, 30)
        )
    assert {hit.node.metadata["path"]: hit.score for hit in plain} == pytest.approx(scores)
    assert recent[0].node.metadata["path"] == "2026-01-01.md"
    [old] = [hit.score for hit in recent if hit.node.metadata["path"] == "2019-01-01.md"]
    assert old < scores["2019-01-01.md"]


def test_an_unknown_tag_is_reported_with_the_nearest_tags(run, tmp_path):
    (tmp_path / "a.md").write_text(
        "---\ntags: [sqlite3, python]\n---\n# Database\n\nThe database is small.\n", "utf-8"
    )
    assert run("index", tmp_path).returncode == 0
    done = run("search", "database", "--tag", "sqlite", "-f", tmp_path)
    message = (
        "no chunk matches the filters: none has the tag 'sqlite' (tags that exist: sqlite3, python)"
    )
    assert done.stderr.splitlines() == ["Nothing found.", message]


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("Projekt/", "folders that exist: projects, projects/alpha"),
        ("alpa", "folders that exist: projects/alpha, projects"),
    ],
)
def test_an_unknown_path_is_reported_with_the_nearest_folders(run, tmp_path, asked, hint):
    (tmp_path / "projects" / "alpha").mkdir(parents=True)
    (tmp_path / "projects" / "alpha" / "a.md").write_text(
        "# Database\n\nThe database is small.\n", "utf-8"
    )
    assert run("index", tmp_path).returncode == 0
    done = run("search", "database", "--path", asked, "-f", tmp_path)
    assert done.stderr.splitlines()[1] == (
        f"no chunk matches the filters: none has a path containing {asked!r} ({hint})"
    )


@pytest.mark.parametrize("question", ["", "  "])
def test_an_empty_question_is_an_error(run, tmp_path, question):
    (tmp_path / "a.md").write_text("Tea.\n", "utf-8")
    assert run("index", tmp_path).returncode == 0
    done = run("search", question, "-f", tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: `question` is empty (got {question!r}). Say what to look for.\n",
    )
