"""The tests that run each of our classes beside the stock class of LlamaIndex that it may stand in
for.

One file for each stock class, ``test_<stock class>.py``, and one function for each thing that a
pipeline does:

    compared = comparison(MarkdownNodeParser(), HeadingAwareMarkdownNodeParser())

    @compared()
    def test_every_character_is_in_a_node(parser):
        return covered(parser)

    @compared(stock="what the stock class gives", ours="what ours gives", differs="row-id")
    def test_...(parser):
        return ...

Both give the same, unless ``differs`` names a row of ``differences.py``. After a change there run
``python scripts/compatibility_page.py``, which writes the rows into
``docs/reference/compatibility.md``. ``test_differences.py`` fails
where the page is old, a row has no test, or a test names no row.
"""
