"""What citations, names and folders of notes mean."""

import pytest
from openpyxl import Workbook

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve.notes import listing, part_of
from llama_index_contextual.utils.errors import DocumentError


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
    (tmp_path / "a.md").write_text(
        "---\ntitle: 'Pumps at 10:30, C# too'\n---\n\n# Red\n\nFast.\n", "utf-8"
    )
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        assert part_of(index, "Pumps at 10:30, C# too").total_lines == 7
        assert part_of(index, "a#red").from_line == 5


def test_a_name_may_be_that_of_a_file_of_any_kind_and_a_sheet_is_named_in_any_case(tmp_path):
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
            assert "bolts" in part_of(index, name).text, name
        assert part_of(index, "er/parts v2.1").text.endswith("Deeper.")
        assert part_of(index, "[[wheels]]").path == "deep/Wheels.txt"
        assert listing(index, "deep/er")[1] == 1
        assert listing(index, "/deep/")[1] == 3
        with pytest.raises(DocumentError, match="no note is in a folder 'depe/er'"):
            listing(index, "depe/er")
