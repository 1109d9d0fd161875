"""The parts of an answer around the notes: the state of the index, and the next call."""

import re

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.tools.arguments import Grep, Listing, Message, Reading, Retrieval
from llama_index_contextual.tools.definitions import NoteTools

TEXT = "The pump {} stands at the harbour and has a red valve."


@pytest.fixture
def pumps(tmp_path):
    """Yield an index of 40 notes on pumps, a note of many lines and one with a long line."""
    for number in range(40):
        text = f"# Pump {number}\n\n{TEXT.format(number)}\n"
        (tmp_path / f"pump{number}.md").write_text(text, "utf-8")
    lines = [f"Line {number} of the log says nothing new about the day." for number in range(100)]
    (tmp_path / "log.md").write_text("\n".join(lines), "utf-8")
    (tmp_path / "wide.md").write_text("wide " * 14_000, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        yield index


def tools_over(index, **options):
    return NoteTools(index.notes, MemoryContext(index), **options)


@pytest.fixture
def tools(pumps):
    return tools_over(pumps)


def test_the_answer_to_a_search_says_that_it_is_from_the_notes(tools):
    assert tools.retrieve(Retrieval(query="red valve")).text.startswith("## Found in the notes\n")
    nothing = tools.retrieve(Retrieval(query="zzzz kangaroo")).text
    assert nothing.startswith("(Nothing found.)\n(Search: ")


def test_a_note_with_the_words_of_an_answer_is_quoted_unchanged(tmp_path):
    line = "A digest begins with ## Relevant prior context as its heading."
    (tmp_path / "a.md").write_text(f"# Digest\n\n{line}\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        assert line in tools_over(index).retrieve(Retrieval(query="digest begins")).text


def test_hits_that_are_not_shown_are_counted_whatever_the_limits(tools):
    counts = set()
    for max_results in (1, 3, 12):
        data = tools.retrieve(Retrieval(query="red valve", max_results=max_results)).data
        assert len(data["hits"]) == max_results
        counts.add(max_results + data["left_out"])
    assert len(counts) == 1
    assert counts.pop() >= 30


def test_a_note_with_many_hits_does_not_displace_other_notes(tools, pumps):
    sections = [f"# Valve {number}\n\nThe red valve is a red valve.\n" for number in range(8)]
    (pumps.folder / "valves.md").write_text("\n".join(sections), "utf-8")
    pumps.refresh()
    search = Retrieval(query="red valve", max_results=4, per_file=1)
    hits = tools.retrieve(search).data["hits"]
    assert len({hit["citation"].partition("#")[0] for hit in hits}) == 4


def test_a_digest_is_as_long_as_its_setting_allows(pumps):
    message = Message(message="which pump has a red valve?")
    assert len(tools_over(pumps).memory_context(message).text) <= 2500
    memory = MemoryContext(pumps, max_results=40, max_tokens=1500, min_relevance=0)
    assert 2500 < len(NoteTools(pumps.notes, memory).memory_context(message).text) <= 6000


def test_data_of_a_hit_name_its_headings(tools):
    [hit] = tools.retrieve(Retrieval(query="pump 7", max_results=1)).data["hits"]
    assert hit["headings"] == "Pump 7"


@pytest.mark.parametrize(("copies", "named"), [(3, 2), (8, 3)])
def test_a_hit_names_up_to_three_other_places_of_its_text(tmp_path, copies, named):
    for number in range(copies):
        (tmp_path / f"copy{number}.md").write_text("# Berth\n\nThe berth is AB-77.\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        answer = tools_over(index).retrieve(Retrieval(query="berth number"))
    [places] = re.findall(r"\(The text of \S+ is also at (.*)\)", answer.text)
    assert len(places.split(", ")) == named
    assert len(answer.data["hits"][0]["also_at"]) == copies - 1


def test_long_names_of_other_places_leave_space_for_hits(tmp_path):
    for number in range(10):
        for copy in range(4):
            folder = tmp_path / f"{copy}-{'folder' * 15}"
            folder.mkdir(exist_ok=True)
            text = f"# Berth {number}\n\n{TEXT.format(number)} It is the pump of berth {number}.\n"
            (folder / f"berth{number}.md").write_text(text, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        search = Retrieval(query="red valve", max_results=8, per_file=0)
        text = tools_over(index).retrieve(search).text
    notes = re.findall(r"^\(The text of .*\)$", text, re.MULTILINE)
    assert notes
    assert sum(map(len, notes)) <= 610


def test_if_not_all_hits_fit_other_words_are_suggested(tmp_path):
    folder = tmp_path / ("folder" * 30)
    folder.mkdir()
    for number in range(12):
        text = f"# Pump {number}\n\n{TEXT.format(number)}\n"
        (folder / f"{'pump' * 40}{number}.md").write_text(text, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        answer = tools_over(index).retrieve(Retrieval(query="red valve", max_results=12))
    assert len(answer.data["hits"]) < 12
    assert "(Next: retrieve with path= or other words, or read a citation; " in answer.text


def test_a_part_names_its_lines_and_the_next_call(tools):
    part = tools.read(Reading(path="log.md", lines=3))
    assert part.text.endswith("\n\n(lines 1 to 3 of 100)")
    assert part.text.startswith("Line 0 of the log")
    assert part.text.count("\n") == 4
    short = tools.read(Reading(path="log.md"))
    last = short.data["to_line"]
    assert 1 < last < 100
    next_call = f"(lines 1 to {last} of 100. Next: read with path=log.md from_line={last + 1})"
    assert short.text.endswith(next_call)
    following = tools.read(Reading(path="log.md", from_line=last + 1))
    assert following.text.startswith(f"Line {last} of the log")


def test_the_answer_for_a_whole_note_is_only_its_text(tools):
    assert tools.read(Reading(path="pump7.md")).text == f"# Pump 7\n\n{TEXT.format(7)}"


def test_only_a_short_answer_says_that_more_of_a_line_can_be_read(tools):
    hint = "; read with lines=1 returns more of the line"
    assert hint in tools.read(Reading(path="wide.md")).text
    assert hint not in tools.read(Reading(path="wide.md", lines=1)).text


def test_every_answer_says_how_far_the_index_is_behind(pumps):
    tools = tools_over(pumps, freshness=lambda: "2 files changed since; run index")
    line = "(Index: 2 files changed since; run index.)"
    answers = [
        tools.retrieve(Retrieval(query="red valve")),
        tools.memory_context(Message(message="where does pump 7 stand?")),
        tools.grep(Grep(pattern="valve")),
        tools.list(Listing()),
    ]
    for answer in answers:
        assert line in answer.text.splitlines()
        assert re.search(r"pump\d+\.md", answer.text)


def test_an_answer_says_if_nothing_is_indexed_yet(pumps):
    tools = tools_over(pumps, freshness=lambda: "being indexed", is_empty=lambda: True)
    assert tools.grep(Grep(pattern="valve")).text == (
        "(Nothing is indexed yet. Index: being indexed.)"
    )
    assert "(Index: nothing is indexed yet; being indexed.)" in (
        tools.retrieve(Retrieval(query="red valve")).text.splitlines()
    )
