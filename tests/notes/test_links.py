"""Notes hang together: what links here, what this links to, and what says the same in its front matter."""

import json

import pytest

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.notes import related
from llama_index_contextual.app.notes.folder import part_of
from llama_index_contextual.errors import DocumentError

PRIYA = """---
aliases: [PN, Priya]
team: Ingest
tags: [people, lead]
---
# Priya Nair

## Open questions

Desk?
"""
TOM = """---
team: ingest
---
# Tom

See [her](Priya%20Nair.md#open-questions), [the plan](../plan.md "soon"),
[a page](https://example.org/plan.md), ![](me.png).
"""
THURSDAY = """# Thursday

- Met [[priya nair]] about ![[plan]].
- [[Priya Nair#Salary]], ![[photo.png]]

```
[[Priya Nair]] in code
```

and `[[Priya Nair]]` in a line, [[#Thursday]]
"""
NOTES = {
    "people/Priya Nair.md": PRIYA,
    "people/tom.md": TOM,
    "plan.md": "# Plan\n\nAsk [[Priya Nair#Open questions|her]], [[pn]] and [[Nobody]].\n\n[later]: people/gone.md\n",
    "memory/2026-04-09.md": THURSDAY,
    "alone.md": "# Alone\n\nNothing.\n",
    "draft.txt": "Write to [[people/Priya Nair]].\n",
}


@pytest.fixture
def index(tmp_path):
    for path, text in NOTES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        yield index


def seen(links):
    return [(one.source, one.line, one.text, one.target, one.problem) for one in links]


def test_what_links_here_in_any_of_its_names(index):
    here = "people/Priya Nair.md"
    assert seen(related(index, here).linked_from) == [
        ("draft.txt", 1, "[[people/Priya Nair]]", here, ""),
        ("memory/2026-04-09.md", 3, "[[priya nair]]", here, ""),
        ("memory/2026-04-09.md", 4, "[[Priya Nair#Salary]]", here, "no such heading:"),
        ("people/tom.md", 6, "[her](Priya%20Nair.md#open-questions)", here, ""),
        ("plan.md", 3, "[[Priya Nair#Open questions|her]]", here, ""),
        ("plan.md", 3, "[[pn]]", here, ""),
    ]


def test_what_this_links_to_and_which_links_are_broken(index):
    assert seen(related(index, "plan.md").links) == [
        ("plan.md", 3, "[[Priya Nair#Open questions|her]]", "people/Priya Nair.md", ""),
        ("plan.md", 3, "[[pn]]", "people/Priya Nair.md", ""),
        ("plan.md", 3, "[[Nobody]]", None, "no such note:"),
        ("plan.md", 5, "[later]: people/gone.md", None, "no such note:"),
    ]
    assert [one.target for one in related(index, "people/tom.md").links] == ["people/Priya Nair.md", "plan.md"]


def test_what_says_the_same_in_its_front_matter(index):
    assert related(index, "people/tom.md").shared == {"team: ingest": ["people/Priya Nair.md"]}


@pytest.mark.parametrize("name", ["people/Priya Nair.md", "[[Priya Nair]]", "priya nair", "PN", "[[Priya|her]]"])
def test_a_note_is_named_by_its_path_its_name_or_an_alias(index, name):
    assert related(index, name).path == "people/Priya Nair.md"


def test_a_note_that_is_not_there_is_an_error_and_one_without_links_says_so(index):
    with pytest.raises(DocumentError, match=r"there is no note 'gone.md'.*Cure: "):
        related(index, "gone.md")
    assert str(related(index, "alone.md")) == "(alone.md links to no note, and none links to it.)"


def test_headings_are_what_a_reader_sees_as_headings_and_fragments_are_told_from_names(tmp_path):
    (tmp_path / "a#b.md").write_text("Under\n=====\n\n```sh\n# Comment\n```\n\n## Later **on**\n", "utf-8")
    links = "[x](a%23b.md#under) [x](a%23b.md#comment) [x](a%23b.md#later-on) [x](a%23b.md#Lower)\n"
    (tmp_path / "links.md").write_text(links, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        found = related(index, "links.md").links
    assert {link.text: link.problem for link in found} == {
        "[x](a%23b.md#under)": "",
        "[x](a%23b.md#comment)": "no such heading:",
        "[x](a%23b.md#later-on)": "",
        "[x](a%23b.md#Lower)": "no such heading:",
    }


def test_what_is_cited_is_what_is_read_whatever_else_looks_like_a_line_or_a_heading(tmp_path):
    note = "# A\u2028b\x0cc\x85d\n\nOne.\n\nUnder\n---\n\nQuokkas.\n\n```sh\n# make\n```\n\nTail.\n\n# Z\n\nZebras.\n"
    (tmp_path / "a.md").write_text(note, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        (hit,) = [one.node for one in index.as_retriever(similarity_top_k=1).retrieve("zebras")]
        cited = f"a.md#L{hit.metadata['start_line']}-L{hit.metadata['end_line']}"
        assert part_of(index, cited).text == hit.text.strip()
        under = part_of(index, "[[a#under]]")
    assert (under.from_line, under.to_line) == (5, 15)
    assert under.text.endswith("# make\n```\n\nTail.\n")


def test_it_is_shown_with_citations_and_nothing_is_written(index):
    before = sorted(path for path in index.folder.rglob("*"))
    assert str(related(index, "plan.md")).splitlines() == [
        "## Links to",
        "- [people/Priya Nair.md] line 3 > [[Priya Nair#Open questions|her]]",
        "- [people/Priya Nair.md] line 3 > [[pn]]",
        "## Linked from",
        "- [memory/2026-04-09.md#L3] > ![[plan]]",
        '- [people/tom.md#L6] > [the plan](../plan.md "soon")',
        "## Broken links",
        "- [plan.md#L3] no such note: > [[Nobody]]",
        "- [plan.md#L5] no such note: > [later]: people/gone.md",
    ]
    assert sorted(path for path in index.folder.rglob("*")) == before


def test_a_link_leads_to_no_file_outside_of_the_folder(index):
    (index.folder / "out.md").write_text("[x](../../etc/passwd) [[../secret]] [y](/people/tom.md)\n", "utf-8")
    assert [(one.text, one.target) for one in related(index, "out.md").links] == [
        ("[[../secret]]", None),
        ("[x](../../etc/passwd)", None),
        ("[y](/people/tom.md)", "people/tom.md"),
    ]


def test_the_command_line_gives_it_as_text_and_as_json(run, index):
    index.refresh()
    index.close()
    text = run("related", "plan.md", "-f", index.folder).stdout
    assert "- [plan.md#L3] no such note: > [[Nobody]]" in text
    data = json.loads(run("related", "plan.md", "-f", index.folder, "--json").stdout)
    assert data["linked_from"][0]["source"] == "memory/2026-04-09.md"
