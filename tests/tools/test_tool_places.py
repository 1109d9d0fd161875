"""Citations, names and folders lead to the notes that they mean."""

import pytest
from llama_index.core.schema import TextNode
from openpyxl import Workbook

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.tools.listing import listing
from llama_index_contextual.tools.notes import NodeNotes
from llama_index_contextual.tools.places import part_of
from llama_index_contextual.utils.errors import DocumentError


def test_a_citation_is_read_exactly_whatever_else_looks_like_a_line_or_heading(tmp_path):
    note = (
        "# A\u2028b\x0cc\x85d\n\nOne.\n\nUnder\n---\n\nQuokkas.\n\n```sh\n# make\n```\n\n"
        "Tail.\n\n# Z\n\nZebras.\n"
    )
    (tmp_path / "a.md").write_text(note, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        (hit,) = [
            scored_node.node
            for scored_node in index.as_retriever(similarity_top_k=1).retrieve("zebras")
        ]
        cited = f"a.md#L{hit.metadata['start_line']}-L{hit.metadata['end_line']}"
        assert part_of(index.notes, cited).text == hit.text.strip()
        under = part_of(index.notes, "[[a#under]]")
    assert (under.from_line, under.to_line) == (5, 15)
    assert under.text.endswith("# make\n```\n\nTail.\n")


def test_a_note_is_read_by_its_title_and_a_heading_without_brackets(tmp_path):
    (tmp_path / "a.md").write_text(
        "---\ntitle: 'Pumps at 10:30, C# too'\n---\n\n# Red\n\nFast.\n", "utf-8"
    )
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        assert part_of(index.notes, "Pumps at 10:30, C# too").total_lines == 7
        assert part_of(index.notes, "a#red").from_line == 5


def test_a_name_can_be_any_file_and_the_case_of_a_sheet_does_not_matter(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    book = Workbook()
    book.active.title = "Stock"
    book.active.append(["item", "count"])
    book.active.append(["bolts", 7])
    book.save(tmp_path / "deep" / "Parts v2.1.xlsx")
    (tmp_path / "deep" / "er" / "Parts v2.1.md").write_text("# Notes\n\nDeeper.\n", "utf-8")
    (tmp_path / "deep" / "Wheels.txt").write_text("Round.\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        for name in ("Parts v2.1", "parts v2.1.xlsx#sheet=stock", "deep/Parts v2.1#sheet=STOCK"):
            assert "bolts" in part_of(index.notes, name).text, name
        assert part_of(index.notes, "er/parts v2.1").text.endswith("Deeper.")
        assert part_of(index.notes, "[[wheels]]").path == "deep/Wheels.txt"
        assert listing(index.notes, "deep/er").data["total"] == 1
        assert listing(index.notes, "/deep/").data["total"] == 3
        with pytest.raises(
            DocumentError, match=r"There is no note in a folder 'depe/er'\. Did you mean deep/er/"
        ):
            listing(index.notes, "depe/er")


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "daily").mkdir()
    (tmp_path / "daily" / "plan.md").write_text("one\ntwo\nthree\nfour\nfive\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        yield index


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("{folder}/daily/plan.md", (1, 5)),
        ("file://{folder}/daily/plan.md", (1, 5)),
        ("{folder}/daily/plan.md#L2-L3", (2, 3)),
        ("./daily/plan.md", (1, 5)),
        ("daily/plan.md:2", (2, 2)),
        ("daily/plan.md:2-3", (2, 3)),
        ("daily/plan.md:L2-L3", (2, 3)),
        ("daily/plan.md:2:14", (2, 2)),
        ("plan:2-3", (2, 3)),
        ("[daily/plan.md:2-3]", (2, 3)),
        ("daily/plan.md, lines 2-3", (2, 3)),
        ("daily/plan.md (lines 2 to 3)", (2, 3)),
        ("- [daily/plan.md#L2-L3] Plan: two", (2, 3)),
        ("[the plan](daily/plan.md#L2)", (2, 2)),
        ("DAILY/PLAN.MD#L2-L3", (2, 3)),
        ("daily/../daily/plan.md", (1, 5)),
    ],
)
def test_places_are_read_in_the_ways_that_agents_write_them(plan, target, lines):
    part = part_of(plan.notes, target.format(folder=plan.folder))
    assert part.path == "daily/plan.md"
    assert (part.from_line, part.to_line) == lines


def test_for_the_name_of_a_folder_the_list_tool_is_suggested(plan):
    for target in ("daily", "./daily/", f"{plan.folder}/daily"):
        with pytest.raises(DocumentError, match=r"'daily' is a folder. Call list with path=daily"):
            part_of(plan.notes, target)


@pytest.mark.parametrize("heading", ["Späte Notiz", "späte-notiz", "sp%C3%A4te-notiz"])
@pytest.mark.parametrize("path", ["plan.md", "PLAN.md"])
def test_a_heading_is_read_however_its_anchor_is_written(tmp_path, path, heading):
    (tmp_path / "plan.md").write_text("# Plan\n\nOne.\n\n## Späte Notiz\n\nTwo.\n", "utf-8")
    (tmp_path / "[x] plan.md").write_text("# Other\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        assert part_of(index.notes, f"{path}#{heading}").from_line == 5
        assert part_of(index.notes, "[x] plan.md").text == "# Other"


def test_a_path_outside_of_the_folder_is_not_read(plan):
    for target in ("/etc/passwd", "../outside.md", f"{plan.folder}/../outside.md"):
        with pytest.raises(DocumentError, match="There is no note"):
            part_of(plan.notes, target)


def test_a_file_whose_name_looks_like_a_place_is_itself(plan):
    (plan.folder / "a:2.md").write_text("colon\n", "utf-8")
    (plan.folder / "b.md:3").write_text("a line?\n", "utf-8")
    plan.refresh()
    assert part_of(plan.notes, "a:2.md").text == "colon"


@pytest.mark.parametrize("path", ["", ".", "./", "{folder}", "{folder}/", "*"])
def test_all_notes_are_listed_for_any_way_to_write_the_root(plan, path):
    assert listing(plan.notes, path.format(folder=plan.folder)).data["total"] == 1


@pytest.mark.parametrize(
    "path",
    [
        "daily",
        "daily/",
        "./daily",
        "{folder}/daily",
        "daily/*",
        "Daily",
        "*.md",
        "**/*.md",
        "da*/p*",
    ],
)
def test_a_folder_is_listed_in_any_way_to_write_it(plan, path):
    answer = listing(plan.notes, path.format(folder=plan.folder))
    assert answer.text.startswith("daily/plan.md")


def test_a_long_list_is_cut_with_a_hint_on_the_next_call(tmp_path):
    (tmp_path / "far" / "down").mkdir(parents=True)
    for number in range(300):
        (tmp_path / "far" / "down" / f"note number {number}.md").write_text("text\n")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        answer = listing(index.notes)
        narrowed = listing(index.notes, "far/down/note number 27")
    assert narrowed.data["total"] == 11
    assert len(answer.text) <= 2500
    assert answer.text.endswith(
        "of 300 notes. Next: list with a folder or the start of a path, or grep.)"
    )
    assert "Folders: far/down/ 300, far/ 300" in answer.text


@pytest.mark.parametrize(
    ("target", "first"),
    [
        ("daily/plan.md", 9),
        ("daily/plan.md#L9", 1),
        ("daily/plan.md#L3-L2", 1),
        ("daily/plan.md#L0-L2", 1),
    ],
)
def test_lines_that_a_note_does_not_have_are_rejected(plan, target, first):
    with pytest.raises(DocumentError, match=r"has no line.* It has 5 lines"):
        part_of(plan.notes, target, first)


def test_only_the_first_of_several_lines_that_do_not_fit_is_cut(plan):
    (plan.folder / "wide.md").write_text(f"{'wide ' * 90}\n{'second ' * 90}\n", "utf-8")
    part = part_of(plan.notes, "wide.md", most=100)
    assert (part.from_line, part.to_line, part.is_line_cut, part.is_cut) == (1, 1, True, True)
    assert part.text == f"{'wide ' * 20} …"


@pytest.mark.parametrize("target", ["pumps#Red Pumps", "pumps#red-pumps", "pumps#Pumps#Red pumps"])
def test_a_heading_is_named_by_its_words_or_its_anchor(plan, target):
    text = "# Pumps\n\nTwo.\n\n## Red Pumps\n\nFast.\nLoud.\n\n## Blue\n\nSlow.\n"
    (plan.folder / "pumps.md").write_text(text, "utf-8")
    section = part_of(plan.notes, target)
    assert (section.from_line, section.to_line) == (5, 9)
    assert part_of(plan.notes, target, count=3).text == "## Red Pumps\n\nFast."
    assert part_of(plan.notes, target, count=99).to_line == 9


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("dialy/plan.md", r"Did you mean daily/plan\.md\?$"),
        ("zzzz", r"Search for its words\.$"),
    ],
)
def test_a_note_that_does_not_exist_is_rejected_with_a_hint(plan, target, hint):
    with pytest.raises(DocumentError, match=hint):
        part_of(plan.notes, target)


def test_a_list_ends_with_the_tags_and_keys_that_narrow_a_search(index):
    lines = listing(index.notes).text.splitlines()
    assert "Folders: daily/ 2, people/ 1" in lines
    assert "Tags: people/team 1" in lines
    assert any(line.startswith("Front matter: ") and "status 1" in line for line in lines)


# Notes in memory


def nodes_at(*paths, **metadata):
    """Return a node at each path, with its path as its text."""
    return [TextNode(text=path, metadata={"path": path, **metadata}) for path in paths]


def notes_at(*paths):
    return NodeNotes(lambda: nodes_at(*paths))


def test_a_name_means_the_markdown_file_of_several_in_one_folder():
    assert part_of(notes_at("plan.csv", "plan.md", "plan.txt"), "plan").path == "plan.md"


def test_a_name_means_the_file_in_the_fewest_folders():
    assert part_of(notes_at("a/b/plan.md", "c/plan.txt"), "plan").path == "c/plan.txt"


def test_a_name_means_a_path_before_a_title():
    nodes = [
        TextNode(text="titled", metadata={"path": "a.md", "title": "Plan"}),
        TextNode(text="named", metadata={"path": "plan.md"}),
    ]
    assert part_of(NodeNotes(lambda: nodes), "Plan").text == "named"


def test_a_title_of_signs_alone_is_not_the_name_of_every_text_without_letters():
    notes = NodeNotes(lambda: nodes_at("a.md", title="!?"))
    with pytest.raises(DocumentError, match=r"There is no note '\?!'"):
        part_of(notes, "?!")


def test_at_most_three_notes_are_suggested_for_a_name():
    notes = notes_at(*(f"plan {number}.md" for number in range(1, 10)))
    with pytest.raises(DocumentError) as error:
        part_of(notes, "plann 1")
    assert str(error.value).count(".md") == 3
    assert "Did you mean plan 1.md, " in str(error.value)


def test_at_most_three_folders_are_suggested_for_a_folder():
    notes = notes_at(*(f"week{number}/a.md" for number in range(1, 10)))
    with pytest.raises(
        DocumentError, match=r"in a folder 'wekk1'\. Did you mean week1/, "
    ) as error:
        listing(notes, "wekk1")
    assert str(error.value).count("/") == 3


def test_without_folders_the_list_of_all_notes_is_suggested():
    with pytest.raises(DocumentError, match=r"in a folder 'week'\. List without a path\.$"):
        listing(notes_at("a.md", "b.md"), "week")


def test_the_most_common_labels_are_listed_as_far_as_they_fit():
    rare_tags = ", ".join(f"rare-{number:02}" for number in range(60))
    nodes = nodes_at("a.md", tags=rare_tags) + nodes_at("b.md", "c.md", tags="common")
    notes = NodeNotes(lambda: nodes)
    [tags] = [line for line in listing(notes).text.splitlines() if line.startswith("Tags: ")]
    assert tags.startswith("Tags: common 2, rare-")
    assert tags.endswith(" 1, …")
    assert 280 < len(tags) < 315


def test_labels_are_those_of_the_listed_notes():
    nodes = nodes_at("work/a.md", status="open") + nodes_at("home/b.md", mood="calm")
    assert listing(NodeNotes(lambda: nodes), "work").text.splitlines() == [
        "work/a.md",
        "",
        "Folders: work/ 1",
        "Front matter: status 1",
    ]


def test_the_list_of_no_notes_says_so():
    answer = listing(notes_at())
    assert (answer.text, answer.data) == ("(no notes)", {"total": 0})


def test_as_many_notes_are_listed_as_fit_with_their_labels():
    notes = notes_at(*(f"{'x' * 90}{number:02}.md" for number in range(30)))
    lines = listing(notes).text.splitlines()
    assert len(lines[:-2]) == 24
    assert lines[-1].startswith("(24 of 30 notes. ")


def test_a_folder_is_listed_without_folders_whose_names_begin_like_it():
    notes = notes_at("daily/a.md", "daily2/b.md")
    assert listing(notes, "daily").data["total"] == 1
    assert listing(notes, "dail").data["total"] == 2


@pytest.mark.parametrize("folder", ["odd\nname", "odd name"], ids=["written", "shown"])
def test_a_folder_is_listed_by_its_name_as_written_or_as_shown(folder):
    notes = notes_at("odd\nname/a.md", "b.md")
    assert listing(notes, folder).data["total"] == 1


def test_the_name_of_a_folder_cannot_forge_a_line():
    notes = notes_at("odd\nname/a.md")
    assert listing(notes).text == "odd name/a.md\n\nFolders: odd name/ 1"
    with pytest.raises(DocumentError, match=r"Did you mean odd name/\?$"):
        listing(notes, "old")
