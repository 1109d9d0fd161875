"""Views of an index that outlive their query."""

import contextvars


def test_a_thread_that_outlives_its_query_reads_the_newest_moment(opened, folder):
    index = opened(embed_model="none")
    index.refresh()
    with index._reader.snapshot():
        outliving = contextvars.copy_context()
    (folder / "new.md").write_text("# Kangaroo\n\nA kangaroo is new.\n", "utf-8")
    index.refresh()
    [hit, *_] = outliving.run(index.as_retriever().retrieve, "kangaroo")
    assert hit.node.metadata["path"] == "new.md"
