"""``grep``: the lines that it finds, their citations, hidden lines, and its time limits."""

import time
from pathlib import Path

import pytest

from llama_index_contextual import contextual_tools
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.tools.arguments import Grep
from llama_index_contextual.tools.grep import Findings, grep, pattern_of
from llama_index_contextual.tools.notes import Passage
from llama_index_contextual.tools.places import part_of
from llama_index_contextual.utils.errors import SettingError

DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"


def citations_of(index, pattern, **options):
    answer = grep(index.notes, Grep(pattern=pattern, **options))
    return [hit["citation"] for hit in answer.data["hits"]]


@pytest.mark.parametrize(
    ("pattern", "options", "citations"),
    [
        ("E4042", {}, ["daily/2026-04-09.md#L3", "runbook.md#L5"]),
        ("e4042", {}, ["daily/2026-04-09.md#L3", "daily/2026-04-10.md#L4", "runbook.md#L5"]),
        (r"\bE\d{4}\b", {"regex": True}, ["daily/2026-04-09.md#L3", "runbook.md#L5"]),
        (r"\W(e4|marta)", {"regex": True}, [
            "daily/2026-04-09.md#L3", "daily/2026-04-09.md#L4", "daily/2026-04-10.md#L3",
            "daily/2026-04-10.md#L4", "people/marta.md#L6",
        ]),
        ("^# ", {"regex": True, "path": "daily/"}, ["daily/2026-04-09.md#L1",
        "daily/2026-04-10.md#L1"]),
        ("marta ruiz", {"since": "2026-04-10"}, ["daily/2026-04-10.md#L3"]),
        ("marta ruiz", {"tag": "people"}, ["people/marta.md#L6"]),
        ("marta ruiz", {"where": ["status=open"]}, ["people/marta.md#L6"]),
        ("RX-7", {}, ["people/marta.md#L1-L5"]),
        ("called\n", {}, []),
        ("E.042", {}, []),
    ],
)  # fmt: skip
def test_lines_that_contain_a_pattern_are_cited_by_number(index, pattern, options, citations):
    assert citations_of(index, pattern, **options) == citations


def test_the_citation_of_a_line_can_be_read(index):
    for citation in citations_of(index, "E4042"):
        assert "E4042" in part_of(index.notes, citation).text


@pytest.mark.parametrize("pattern", ["RX-7", "Tools of the trade", "title: tools"])
def test_front_matter_is_searched_and_cited_by_lines_that_read_accepts(folder, index, pattern):
    sections = "\n".join(f"## Part {part}\n\nSome words about pumps.\n" * 9 for part in range(9))
    (folder / "tools.md").write_text(
        f"---\ntitle: Tools of the trade\ncode: [RX-7]\n---\n{sections}", "utf-8"
    )
    index.refresh()
    [citation] = citations_of(index, pattern, path="tools.md")
    assert citation == "tools.md#L1-L4"
    assert pattern.casefold() in part_of(index.notes, citation).text.casefold()
    answer = grep(index.notes, Grep(pattern=pattern, path="tools.md"))
    assert f"- [{citation}] front matter: " in answer.text


def test_a_line_that_is_split_between_chunks_counts_once(folder, index):
    sentences = " ".join(f"The pump {number} feeds the ZX-9 tank." for number in range(200))
    (folder / "long.md").write_text(f"# Long\n\n{sentences}\n", "utf-8")
    index.refresh()
    assert len(index.nodes("long.md")) > 2
    answer = grep(index.notes, Grep(pattern="ZX-9"))
    assert answer.text.startswith("1 line in 1 note:\n- [long.md#L3] ")


def test_a_match_across_lines_is_ignored(index):
    assert grep(index.notes, Grep(pattern="full.\\nRestart", regex=True)).data == {
        "hits": [],
        "lines": 0,
        "notes": 0,
    }


def test_a_line_comes_with_its_headings_and_text_once(index):
    answer = grep(index.notes, Grep(pattern="queue"))
    assert answer.text == (
        "1 line in 1 note:\n- [runbook.md#L5] Runbook > Errors: E4042 means that the queue is full."
    )
    assert "queue" not in str(answer.data)


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("copy{}.md", "(also copy1.md#L3, copy2.md#L3, copy3.md#L3, copy4.md#L3, copy5.md#L3)"),
        (
            "a/folder/with/copy {}.md",
            "(also "
            + ", ".join(f"a/folder/with/copy {number}.md#L3" for number in range(1, 4))
            + " and 2 more)",
        ),
        (f"{'copy ' * 20}{{}}.md", "(also in 5 places)"),
    ],
)
def test_equal_lines_are_shown_once_with_as_many_places_as_fit(folder, index, name, also):
    for number in range(6):
        text = "# Copy\n\nThe pump is an ABX-99.\n"
        file = folder / name.format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    index.refresh()
    answer = grep(index.notes, Grep(pattern="ABX"))
    assert answer.text.count("ABX-99") == 1
    assert answer.text.endswith(f"The pump is an ABX-99. {also}")
    assert (answer.data["lines"], answer.data["notes"]) == (6, 6)


def test_lines_that_do_not_fit_are_counted_with_their_copies(folder, index):
    for name in ("zoo", "zoo copy"):
        lines = [f"- entry {number} about zebras {'and more ' * 20}" for number in range(20)]
        (folder / f"{name}.md").write_text("# Zoo\n\n" + "\n".join(lines), "utf-8")
    index.refresh()
    answer = grep(index.notes, Grep(pattern="zebras", per_file=0))
    shown = len(answer.data["hits"])
    assert 5 < shown < 20
    hidden = 20 - shown
    assert f"({2 * hidden} more in 2 notes: zoo copy.md {hidden}, zoo.md {hidden}. " in answer.text


def test_hidden_lines_are_counted_with_a_hint_on_the_next_call(folder, index):
    for number in range(9):
        lines = [f"- entry {number}.{line} about zebras" for line in range(40)]
        (folder / f"zoo{number}.md").write_text("# Zoo\n\n" + "\n".join(lines), "utf-8")
    index.refresh()
    answer = grep(index.notes, Grep(pattern="zebras"))
    assert len(answer.text) <= 2500
    shown = len(answer.data["hits"])
    assert answer.text.splitlines()[-1].startswith(f"({360 - shown} more in 9 notes: zoo")
    assert "Next: grep with path=" in answer.text
    assert all(answer.text.count(f"[zoo{number}.md") <= 3 for number in range(9))
    one_note = citations_of(index, "zebras", path="zoo3", per_file=0, max_results=50)
    assert len(one_note) > 20


def test_converted_documents_are_searched_and_cited_by_page(tmp_path):
    for name in ("report.pdf", "fees.xlsx"):
        (tmp_path / name).write_bytes((DOCUMENTS / name).read_bytes())
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        page = index.read("report.pdf#page=2").split()[0]
        citations = citations_of(index, page, path="report.pdf", per_file=0)
        assert "report.pdf#page=2" in citations


def test_a_long_line_is_shown_around_its_match(folder, index):
    (folder / "long.md").write_text("word " * 90 + "NEEDLE" + " word" * 90, "utf-8")
    (folder / "end.md").write_text("word " * 90 + "THORN", "utf-8")
    index.refresh()
    [line] = grep(index.notes, Grep(pattern="NEEDLE")).text.splitlines()[1:]
    assert "word NEEDLE word" in line
    assert 200 < len(line) < 230
    [line] = grep(index.notes, Grep(pattern="THORN")).text.splitlines()[1:]
    assert line.endswith("word THORN")
    assert 200 < len(line) < 230


def test_an_expression_that_would_never_end_is_stopped(folder, index):
    (folder / "trap.md").write_text("a" * 300 + "!\n", "utf-8")
    index.refresh()
    with pytest.raises(SettingError, match="takes too long"):
        citations_of(index, r"(a|aa)+$", regex=True)


def test_an_expression_has_a_limit_for_all_texts_together(monkeypatch):
    monkeypatch.setattr("llama_index_contextual.tools.grep._SECONDS", 0.2)
    pattern = pattern_of(r"(?:\w+ )+!", is_regex=True)
    texts = ["some words of a line " * 3] * 100_000
    with pytest.raises(SettingError, match="takes too long"):
        any(map(pattern.is_in, texts))


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000000000}",
        "(a{1000000000,})",
        "((((a{1000}){1000}){1000}){1000})",
        "(a?){0}(b?){9}{1000000}",
        "(?x)a{1 0 0 0 0 0 0 0 0 0}",
        "(?ix: a{1#,\n000000000} )",
        "(?R)?a(?R)?",
        "(a(?1)?b(?1)?)+c",
        "(?P<a>x(?&a)?)(?P>a)",
        "(" * 900 + "a" + ")" * 900,
    ],
)
def test_an_expression_with_unlimited_time_or_memory_is_rejected(pattern):
    start = time.process_time()
    with pytest.raises(SettingError, match=r"`pattern` (?:must|is not)"):
        pattern_of(pattern, is_regex=True)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}",
        r"\{1000000}",
        r"\(?x",
        "(?i)x",
        "(?:x)",
    ],
)
def test_usual_repetitions_and_groups_are_accepted(pattern):
    pattern_of(pattern, is_regex=True)


def test_an_invalid_expression_is_explained(index):
    with pytest.raises(SettingError, match="is not a valid regular expression: missing"):
        citations_of(index, "(open", regex=True)


def test_an_answer_without_lines_suggests_other_tools(index):
    text = grep(index.notes, Grep(pattern=r"E\d+")).text
    assert "regex=true" in text
    assert text.endswith("retrieve finds other wordings.)")


def test_only_as_many_lines_as_can_be_shown_are_kept():
    lines = [(number, f"valve {number}") for number in range(1, 5001)]
    findings = Findings(most=20, per_file=3)
    for path in ("a.md", "b.md"):
        findings.add(Passage(path, "", 0, "", {}), [], lines)
    assert [*findings.groups] == [f"valve {number}" for number in range(1, 7)]
    assert [len(group) for group in findings.groups.values()] == [2, 2, 2, 1, 1, 1]
    assert findings.hidden == {"a.md": 4997, "b.md": 4994}


def test_no_more_lines_are_shown_than_a_call_requests(folder, index):
    lines = "\n".join(f"- entry {number} about zebras" for number in range(9))
    (folder / "zoo.md").write_text(f"# Zoo\n\n{lines}\n", "utf-8")
    index.refresh()
    answer = grep(index.notes, Grep(pattern="zebras", per_file=0, max_results=4))
    assert len(answer.data["hits"]) == 4
    assert "(5 more in 1 note: zoo.md 5. Next: grep with max_results=50" in answer.text


def test_the_next_call_shows_the_remaining_lines(folder, index):
    lines = "\n".join(f"- entry {number} about zebras" for number in range(200))
    (folder / "zoo.md").write_text(f"# Zoo\n\n{lines}\n", "utf-8")
    index.refresh()
    few = grep(index.notes, Grep(pattern="zebras"))
    assert "Next: grep with path= one of these and per_file=0" in few.text
    more = grep(index.notes, Grep(pattern="zebras", path="zoo.md", per_file=0))
    assert "Next: grep with max_results=50" in more.text
    most = grep(index.notes, Grep(pattern="zebras", path="zoo.md", per_file=0, max_results=50))
    last = len(most.data["hits"]) + 2
    assert f"Next: read with path=zoo.md from_line={last + 1}," in most.text
    assert f"- [zoo.md#L{last}]" in most.text
    assert part_of(index.notes, "zoo.md", last + 1).text.startswith(f"- entry {last - 2} ")


def test_more_results_are_not_suggested_if_no_more_lines_fit(folder, index):
    lines = "\n".join(f"- entry {number} about zebras {'and more ' * 20}" for number in range(40))
    (folder / "zoo.md").write_text(f"# Zoo\n\n{lines}\n", "utf-8")
    index.refresh()
    answer = grep(index.notes, Grep(pattern="zebras", per_file=0))
    last = len(answer.data["hits"]) + 2
    assert f"Next: read with path=zoo.md from_line={last + 1}," in answer.text


@pytest.mark.long
def test_a_line_at_the_end_of_megabytes_is_found(tmp_path):
    text = "\n".join(f"Line {number} is about pumps and valves." for number in range(30_000))
    for number in range(3):
        (tmp_path / f"big{number}.txt").write_text(f"{text}\nOnly E{number}{number}77 here.\n")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        tools = {tool.metadata.name: tool for tool in contextual_tools(index)}
        assert "big1.txt#L30001" in str(tools["grep"](pattern="E1177"))
