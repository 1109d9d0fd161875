"""Notes hang together: what links here, what this links to, and what says the same in its front matter."""

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.serve import part_of


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


def test_a_note_is_read_by_its_title_and_a_heading_without_brackets(tmp_path):
    (tmp_path / "a.md").write_text("---\ntitle: 'Pumps at 10:30, C# too'\n---\n\n# Red\n\nFast.\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        assert part_of(index, "Pumps at 10:30, C# too").total_lines == 7
        assert part_of(index, "a#red").from_line == 5
