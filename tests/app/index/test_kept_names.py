"""Names of documents are kept beside the index.

They follow each refresh, and a copy that is damaged is made again.
"""

from __future__ import annotations

import pytest


def first(index, name):
    """Return the path of the document that has a name, or "" if none has it."""
    hit = index.as_retriever().explain(name).hits[0]
    return (
        hit.node.node.metadata["path"] if "names" in {credit.name for credit in hit.credits} else ""
    )


def test_names_follow_each_refresh(opened, folder, model):
    writer, reader = opened(embed_model=model), opened(embed_model=model)
    (folder / "dog.md").write_text("---\naliases: [Rex]\n---\nHe eats carrots.\n", "utf-8")
    writer.refresh()
    assert (first(reader, "Rex"), first(reader, "dog"), first(reader, "Guide")) == (
        "dog.md",
        "dog.md",
        "guide.md",
    )
    (folder / "dog.md").write_text("---\naliases: [Fido]\n---\nHe eats carrots.\n", "utf-8")
    (folder / "guide.md").rename(folder / "handbook.md")
    (folder / "faq.md").unlink()
    writer.refresh()
    for index in (reader, opened(embed_model=model)):
        assert [first(index, name) for name in ("Rex", "Fido", "guide.md", "handbook.md", "Guide",
        "faq")] == [
            "", "dog.md", "", "handbook.md", "handbook.md", "",
        ]  # fmt: skip


@pytest.mark.parametrize("harm", ["gone", "changed", "cut"])
def test_a_copy_of_names_that_cannot_be_used_is_made_again_and_a_question_writes_nothing(
    opened, model, harm
):
    opened(embed_model=model).refresh()
    index = opened(embed_model=model)
    [kept] = index.settings.layout.root.glob("cache/names.arrays")
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes({"gone": b"", "changed": data, "cut": data[:-9]}[harm])
    there = kept.read_bytes()
    assert [first(index, name) for name in ("faq", "Morning", "nobody")] == [
        "faq.md",
        "memory/2026-01-28.md",
        "",
    ]
    assert kept.read_bytes() == there
    opened(embed_model=model).refresh()
    assert kept.read_bytes() != there
